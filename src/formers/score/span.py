"""Adaptive attention span (Sukhbaatar et al., 2019): every head learns how far back it looks.

s_ij   = q_i . (k_j + p_{i-j}) / sqrt(d_h) + log m_z(i-j)                                              E60
m_z(x) = min(max((R + z - x) / R, 0), 1)         1 up to the span z, then a ramp of R places to 0       E61
L     += (lambda / h) sum of z over the heads    in every layer                                         E62
z      = S min(max(a, 0), 1)                     a of a head                                            E63
z_t    = S sigmoid(v . x_t + b)                  dynamic: v and b a head                                E64

The paper multiplies the exponentials by m and divides by their sum; added as a logarithm m does the same, and nothing underflows. Where m
is 0 a key is shut and has no gradient. Position keys p are one table for all heads and layers, of the distances 1 ... S: the paper's
pattern, Local(window=S, include_self=False), leaves the own place out; under patterns that show it, it has no position key and m is 1.

A step of an optimiser may take a out of [0, 1]. The span then stays at its bound, so that the penalty is never negative, and the gradient
of a is 0 where it points further out and passes where it points back: a span at 0 or at S can move again, without help from the loop.

Beyond R + z nothing is seen, so nothing is computed: `reach` says where that is, in steps of GRAIN places. It is read from the weights,
once a segment, and not where they cannot be read (under torch.compile, or where tensors have no numbers): there it is the maximum. A state
without a memory slot keeps the keys of S places, whatever the spans are now: a later step may make them longer.
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
from formers.core.positions import distances
from formers.core.tables import cached_table
from formers.score.base import Score, ScoreModule
from formers.score.distance import ByDistance

GRAIN = 64
"""What is read of the past is rounded up to a multiple of this, as in the authors' code: shapes then change seldom."""
FINE = 8
"""What a head computes is rounded up to a multiple of this."""
START = 0.018
"""The share of the maximum that dynamic spans begin with: the paper's b = -4."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class FixedSpan(Score):
    """Position keys over the last `span` places, every one of which is seen: what learned spans are measured against."""

    span: PositiveInt
    """S, the furthest that is ever seen."""

    def common(self, sizes: Sizes) -> PositionKeys:
        return PositionKeys(self.span, sizes.head_dim)

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return FixedSpanScore(self, sizes, common)


class Span(FixedSpan):
    """Every head learns one span, which costs `penalty` a place."""

    ramp: PositiveInt = 32
    """R, the places over which a span ends."""
    penalty: NonNegativeFloat = 0.0
    """lambda, in nats a target and place."""
    init: Share = 0.0
    """The share of S that spans begin with."""

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return SpanScore(self, sizes, common)


class DynamicSpan(FixedSpan):
    """Every token has a span in every head, from what the sublayer is given; their mean costs `penalty` a place."""

    ramp: PositiveInt = 32
    penalty: NonNegativeFloat = 0.0
    init: Annotated[float, Field(gt=0.0, lt=1.0)] = START
    """The share of S that spans begin with."""

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return DynamicSpanScore(self, sizes, common)


class PositionKeys(nn.Module):
    """p (span, head_dim) of the distances 1 ... span."""

    undecayed: ClassVar[tuple[str, ...]] = ("position_keys",)

    def __init__(self, span: int, width: int) -> None:
        super().__init__()
        self.position_keys = nn.Parameter(torch.randn(span, width))

    def table(self, distances: int, dtype: torch.dtype) -> Tensor:
        """p (1, distances, head_dim) of the distances 0, 1, ...; 0 of the own place."""
        return cached_table(self.position_keys, dtype, distances, self.made)[:, :distances]

    def made(self, distances: int) -> Tensor:
        """The table of the first distances, of as many as there are."""
        return F.pad(self.position_keys[: distances - 1], (0, 0, 1, 0))[None]


class FixedSpanScore(ScoreModule):
    """q_i . p_{i-j} over the last S places."""

    def __init__(self, part: FixedSpan, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__()
        self.span = part.span
        if common is None:
            self.position = PositionKeys(part.span, sizes.head_dim)
        else:
            self.__dict__["position"] = common  # the stack's, which owns it

    def reach(self, step: int) -> int:
        return self.span + 1

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        return q, self.term(q, keys, context, scale, None, None)

    def term(
        self, q: Tensor, keys: Positions, context: Context, scale: float, level: Tensor | None, reaches: tuple[int, ...] | None
    ) -> ByDistance:
        """The term of the position keys and a level (..., distances), as far back as it goes."""
        distances = self.distances(keys, context, reaches) if level is None else level.shape[-1]
        table = self.position.table(distances, q.dtype)
        return ByDistance(q * scale, table, level, context.positions, keys, reaches)  # E60

    def distances(self, keys: Positions, context: Context, reaches: tuple[int, ...] | None) -> int:
        """The number of distances, from 0 on, that a query may see a key at."""
        furthest = self.span + 1 if reaches is None else max(reaches)
        return min(furthest, distances(context.positions, keys))


class SpanScore(FixedSpanScore):
    """Position keys, and log m of a span for each head."""

    def __init__(self, part: Span, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__(part, sizes, common)
        self.ramp, self.penalty = part.ramp, part.penalty
        self.share = nn.Parameter(torch.full((sizes.heads,), part.init))

    def spans(self) -> Tensor:
        """z (heads,), in places, between 0 and S."""
        bounded: Tensor = Bounded.apply(at_least_float32(self.share))  # type: ignore[no-untyped-call]
        return self.span * bounded  # E63

    def reach(self, step: int) -> int:
        reaches = self.reaches()
        return self.span + 1 if reaches is None else min(-(-max(reaches) // GRAIN) * GRAIN, self.span + 1)

    def max_reach(self, step: int) -> int:
        return self.span + 1

    def reaches(self) -> tuple[int, ...] | None:
        """By head, how many distances have a weight; None where weights cannot be read."""
        if not concrete(self.share):
            return None
        return rounded_reaches((self.span * min(max(share, 0.0), 1.0) for share in self.share.tolist()), self.ramp, self.span)

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        z = self.spans()  # once: its gradient is bounded as a whole, what the penalty and what the scores ask for
        if self.penalty:
            add_span_loss(context, self.penalty * z.mean())  # E62
        if context.watch is not None:
            context.watch.note("span", step, lambda: z.detach())
        reaches = self.reaches()
        distances = self.distances(keys, context, reaches)
        level = cached_table(self.share, q.dtype, distances, partial(self.level, z), (self.span, self.ramp))
        return q, self.term(q, keys, context, scale, level[None, :, None], reaches)

    def level(self, z: Tensor, distances: int) -> Tensor:
        """log m (heads, distances) of the spans z (heads,)."""
        return logarithm(soft_mask(z, self.ramp, distances))


class Bounded(torch.autograd.Function):
    """min(max(a, 0), 1), with a gradient that is 0 at a bound or beyond it where a descent along it would lead further out."""

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
    """Position keys, and log m of a span for each head and token."""

    def __init__(self, part: DynamicSpan, sizes: Sizes, common: nn.Module | None) -> None:
        super().__init__(part, sizes, common)
        self.ramp, self.penalty = part.ramp, part.penalty
        self.share = nn.Linear(sizes.dim, sizes.heads)
        nn.init.zeros_(self.share.weight)
        nn.init.constant_(self.share.bias, math.log(part.init / (1.0 - part.init)))

    def spans(self, x: Tensor) -> Tensor:
        """z (batch, heads, queries), in places, of x (batch, queries, dim)."""
        return self.span * torch.sigmoid(at_least_float32(self.share(x))).transpose(1, 2)  # E64

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        z = self.spans(x)
        if self.penalty:
            add_span_loss(context, self.penalty * mean_of_real(z, context.valid))  # E62
        if context.watch is not None:
            context.watch.note("span by token", step, lambda: z.detach().transpose(1, 2))
        # The next tokens may look further back than these, so that `reach`, which says what is kept, stays the maximum.
        reaches = rounded_reaches(z.detach().amax(dim=(0, 2)).tolist(), self.ramp, self.span) if concrete(z) else None
        distances = self.distances(keys, context, reaches)
        level = logarithm(soft_mask(z, self.ramp, distances)).to(q.dtype)
        return q, self.term(q, keys, context, scale, level, reaches)


def soft_mask(z: Tensor, ramp: int, distances: int) -> Tensor:
    """m_z(x) (..., distances) of spans z (...) at the distances x = 0, 1, ..."""
    ahead = ramp - torch.arange(distances, dtype=z.dtype, device=z.device)  # R - x, exactly: R + z would round a small z away
    return ((z[..., None] + ahead) / ramp).clamp(0.0, 1.0)  # E61


def logarithm(m: Tensor) -> Tensor:
    """log m, minus infinity at 0, where its gradient is 0."""
    shut = m == 0
    return m.masked_fill(shut, 1.0).log().masked_fill(shut, float("-inf"))


def rounded_reaches(spans: Iterable[float], ramp: int, most: int) -> tuple[int, ...]:
    """How many distances, from 0 on, have a weight under each span: m_z(x) > 0 where x < R + z; a multiple of FINE, or all of them."""
    wanted = (max(1, math.ceil(ramp + z)) if math.isfinite(z) else most + 1 for z in spans)
    return tuple(min(-(-n // FINE) * FINE, most + 1) for n in wanted)


def mean_of_real(z: Tensor, valid: Tensor | None) -> Tensor:
    """The mean of z (batch, heads, queries) over heads and real tokens, marked in valid (batch, queries)."""
    if valid is None:
        return z.mean()
    return z.mean(dim=1).masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)


def add_span_loss(context: Context, cost: Tensor) -> None:
    """Adds to what the spans of all layers cost."""
    context.losses["span"] = context.losses["span"] + cost if "span" in context.losses else cost


def at_least_float32(x: Tensor) -> Tensor:
    """x in a type that tells thousands of places apart."""
    return x if x.dtype == torch.float64 else x.float()
