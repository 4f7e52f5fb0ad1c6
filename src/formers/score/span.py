"""Adaptive attention span (Sukhbaatar et al., 2019): every head learns how far back it attends.

s_ij   = q_i . (k_j + p_{i-j}) / sqrt(d_h) + log m_z(i-j)                                              E60
m_z(x) = min(max((R + z - x) / R, 0), 1)         1 up to the span z, then a ramp to 0 over R positions   E61
L     += (lambda / h) sum of z over the heads    in every layer                                         E62
z      = S min(max(a, 0), 1)                     one a per head                                         E63
z_t    = S sigmoid(v . x_t + b)                  dynamic: one v and b per head                          E64

The paper multiplies the exponentials by m and divides by their sum; adding log m is the same and does not underflow. If m is 0, the
key is masked and gets no gradient. The position keys p are one table for all heads and layers, for the distances 1 ... S: the paper's
pattern, Local(window=S, include_self=False), excludes self. In patterns that include self, it has no position key and m is 1.

An optimiser step may move a out of [0, 1]. The span then stays at its bound, so that the penalty is never negative. The gradient of a
is 0 if a descent step would move it further out, and is passed otherwise: a span at 0 or S can move again without a clamp after the step.

Keys beyond R + z have no weight and are not computed: `reach` is that limit, rounded up to a multiple of GRAIN. It is computed from the
weights once per segment; if their values cannot be read (under torch.compile or with fake tensors) it is the maximum. Off the host, where
reading waits, it is the maximum, too, except while weights are fixed (`fixed_weights`): there it is read once. Dynamic spans are read on
the host only. A state without a memory slot keeps the keys of S positions, whatever the current spans are: later training may make them
longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Context, Positions, Sizes
from formers.core.compiler import concrete
from formers.core.content import cached_reading
from formers.core.devices import readable
from formers.core.positions import distances
from formers.core.tables import cached_table
from formers.score.base import Score, ScoreModule
from formers.score.distance import ByDistance

GRAIN = 64
"""`reach` is rounded up to a multiple of this, as in the authors' code, so that shapes rarely change."""
FINE = 8
"""The number of distances computed per head is rounded up to a multiple of this."""
START = 0.018
"""The initial span of dynamic spans, as a fraction of S: the paper's b = -4."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class FixedSpan(Score):
    """Position keys over the last `span` positions, without a mask: the baseline for learned spans."""

    span: PositiveInt
    """S, the largest distance."""

    def common(self, sizes: Sizes) -> PositionKeys:
        return PositionKeys(self.span, sizes.head_dim)

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return FixedSpanScore(self, sizes, common)


class Span(FixedSpan):
    """Every head learns one span; each position of span costs `penalty`."""

    ramp: PositiveInt = 32
    """R, the length of the ramp in positions."""
    penalty: NonNegativeFloat = 0.0
    """lambda, in nats per target and position."""
    init: Share = 0.0
    """The initial span as a fraction of S."""

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return SpanScore(self, sizes, common)


class DynamicSpan(FixedSpan):
    """Every token has a span in every head, computed from the sublayer's input; each position of the mean span costs `penalty`."""

    ramp: PositiveInt = 32
    penalty: NonNegativeFloat = 0.0
    init: Annotated[float, Field(gt=0.0, lt=1.0)] = START
    """The initial span as a fraction of S."""

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return DynamicSpanScore(self, sizes, common)


class PositionKeys(nn.Module):
    """p (span, head_dim) for the distances 1 ... span."""

    undecayed: ClassVar[tuple[str, ...]] = ("position_keys",)

    def __init__(self, span: int, width: int) -> None:
        super().__init__()
        self.position_keys = nn.Parameter(torch.randn(span, width))

    def table(self, distances: int, dtype: torch.dtype) -> Tensor:
        """p (1, distances, head_dim) for the distances 0, 1, ...; 0 for self."""
        return cached_table(self.position_keys, dtype, distances, self.made)[:, :distances]

    def made(self, distances: int) -> Tensor:
        """The table of the first distances, at most span + 1."""
        return F.pad(self.position_keys[: distances - 1], (0, 0, 1, 0))[None]


class FixedSpanScore(ScoreModule):
    """q_i . p_{i-j} over the last S positions."""

    def __init__(self, part: FixedSpan, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__()
        self.span = part.span
        if common is None:
            self.position = PositionKeys(part.span, sizes.head_dim)
        else:
            self.__dict__["position"] = common  # owned by the stack

    def reach(self, step: int) -> int:
        return self.span + 1

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        return q, self.term(q, keys, context, scale, None, None)

    def term(
        self, q: Tensor, keys: Positions, context: Context, scale: float, level: Tensor | None, reaches: tuple[int, ...] | None
    ) -> ByDistance:
        """The term of the position keys and of a level (..., distances)."""
        distances = self.distances(keys, context, reaches) if level is None else level.shape[-1]
        table = self.position.table(distances, q.dtype)
        return ByDistance(q * scale, table, level, context.positions, keys, reaches)  # E60

    def distances(self, keys: Positions, context: Context, reaches: tuple[int, ...] | None) -> int:
        """The number of distances, counted from 0, between queries and visible keys."""
        furthest = self.span + 1 if reaches is None else max(reaches)
        return min(furthest, distances(context.positions, keys))


class SpanScore(FixedSpanScore):
    """Position keys, and log m for one span per head."""

    def __init__(self, part: Span, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__(part, sizes, common)
        self.ramp, self.penalty = part.ramp, part.penalty
        self.share = nn.Parameter(torch.full((sizes.heads,), part.init))

    def spans(self) -> Tensor:
        """z (heads,), in positions, between 0 and S."""
        bounded: Tensor = Bounded.apply(at_least_float32(self.share))  # type: ignore[no-untyped-call]
        return self.span * bounded  # E63

    def reach(self, step: int) -> int:
        reaches = self.reaches()
        return self.span + 1 if reaches is None else min(-(-max(reaches) // GRAIN) * GRAIN, self.span + 1)

    def max_reach(self, step: int) -> int:
        return self.span + 1

    def reaches(self) -> tuple[int, ...] | None:
        """The number of distances with a non-zero weight, per head; None if weights cannot be read."""
        return cached_reading(self.share, self.read_reaches) if concrete(self.share) else None

    def read_reaches(self) -> tuple[int, ...]:
        """`reaches`, read from the weights."""
        return rounded_reaches((self.span * min(max(share, 0.0), 1.0) for share in self.share.tolist()), self.ramp, self.span)

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        z = self.spans()  # once: `Bounded` must see the sum of the penalty's and the scores' gradients
        if self.penalty:
            add_span_loss(context, self.penalty * z.mean())  # E62
        if context.watch is not None:
            context.watch.note("span", step, lambda: z.detach())
        reaches = self.reaches()
        distances = self.distances(keys, context, reaches)
        level = cached_table(self.share, q.dtype, distances, partial(self.level, z), (self.span, self.ramp))
        return q, self.term(q, keys, context, scale, level[None, :, None], reaches)

    def level(self, z: Tensor, distances: int) -> Tensor:
        """log m (heads, distances) for the spans z (heads,)."""
        return logarithm(soft_mask(z, self.ramp, distances))


class Bounded(torch.autograd.Function):
    """min(max(a, 0), 1); its gradient is 0 at or beyond a bound if a descent step would move a further out."""

    generate_vmap_rule = True  # for torch.func

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a.clamp(0.0, 1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return slope.masked_fill(((a <= 0.0) & (slope > 0.0)) | ((a >= 1.0) & (slope < 0.0)), 0.0)


class DynamicSpanScore(FixedSpanScore):
    """Position keys, and log m for one span per head and token."""

    def __init__(self, part: DynamicSpan, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__(part, sizes, common)
        self.ramp, self.penalty = part.ramp, part.penalty
        self.share = nn.Linear(sizes.dim, sizes.heads)
        nn.init.zeros_(self.share.weight)
        nn.init.constant_(self.share.bias, math.log(part.init / (1.0 - part.init)))

    def spans(self, x: Tensor) -> Tensor:
        """z (batch, heads, queries), in positions, for x (batch, queries, dim)."""
        return self.span * torch.sigmoid(at_least_float32(self.share(x))).transpose(1, 2)  # E64

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        z = self.spans(x)
        if self.penalty:
            add_span_loss(context, self.penalty * mean_of_real(z, context.valid))  # E62
        if context.watch is not None:
            context.watch.note("span by token", step, lambda: z.detach().transpose(1, 2))
        # Later tokens may have longer spans, so that `reach`, which limits the state, stays the maximum.
        reaches = rounded_reaches(z.detach().amax(dim=(0, 2)).tolist(), self.ramp, self.span) if readable(z) else None
        distances = self.distances(keys, context, reaches)
        level = logarithm(soft_mask(z, self.ramp, distances)).to(q.dtype)
        return q, self.term(q, keys, context, scale, level, reaches)


def soft_mask(z: Tensor, ramp: int, distances: int) -> Tensor:
    """m_z(x) (..., distances) for spans z (...) at the distances x = 0, 1, ..."""
    ahead = ramp - torch.arange(distances, dtype=z.dtype, device=z.device)  # R - x, exactly: R + z would round a small z away
    return ((z[..., None] + ahead) / ramp).clamp(0.0, 1.0)  # E61


def logarithm(m: Tensor) -> Tensor:
    """log m; minus infinity at 0, with gradient 0."""
    shut = m == 0
    return m.masked_fill(shut, 1.0).log().masked_fill(shut, float("-inf"))


def rounded_reaches(spans: Iterable[float], ramp: int, most: int) -> tuple[int, ...]:
    """The number of distances with a non-zero weight for each span, m_z(x) > 0 if x < R + z, rounded up to FINE and at most S + 1."""
    wanted = (max(1, math.ceil(ramp + z)) if math.isfinite(z) else most + 1 for z in spans)
    return tuple(min(-(-n // FINE) * FINE, most + 1) for n in wanted)


def mean_of_real(z: Tensor, valid: Tensor | None) -> Tensor:
    """The mean of z (batch, heads, queries) over heads and real tokens, marked in valid (batch, queries)."""
    if valid is None:
        return z.mean()
    return z.mean(dim=1).masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)


def add_span_loss(context: Context, cost: Tensor) -> None:
    """Adds the span loss of a layer to context.losses."""
    context.losses["span"] = context.losses["span"] + cost if "span" in context.losses else cost


def at_least_float32(x: Tensor) -> Tensor:
    """x in a dtype that can represent integers of several thousands exactly."""
    return x if x.dtype == torch.float64 else x.float()
