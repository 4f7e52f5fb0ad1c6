"""Low-rank attention (Wang et al., 2020, "Linformer: Self-Attention with Linear Complexity").

k' = E k,   v' = F v                  E, F in R^{rank x length}, without bias: learned                       E120
k'_r = mean of k_j in window r        windows of w = ceil(length / rank) tokens, no weights                  E121
k'_r = sum_{t<w} k_{rw+t} C_t         C in R^{w x d_h x d_h}: a convolution with kernel and stride w         E122
head = softmax(q k'^T / sqrt(d_h)) v'                                          E1 and E2, over at most `rank` keys

k = x W^k + b^k are the keys of all tokens, and v likewise. Each projected key is made of tokens from the whole row, later ones
among them, so that no causal form exists, and no pattern can say who sees whom. Padding is 0 before it is projected. Of n < length
tokens the first n columns of E are used, as if 0 stood behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.multihead import EVERYTHING, Attention, DotProduct, _Heads, initialise
from formers.core import Context, FormersError, KVCache, Range, Sizes
from formers.patterns import Pattern
from formers.score.base import ScoreModule


class LowRank(Attention):
    """Keys and values are projected along the length to at most `rank` of each, so that time grows with the length and not its square.

    The weights of the projection are those of each head, keys and values apart (sharing "none"), of all heads of a layer ("headwise"),
    of its keys and values, too ("key-value"), or of the whole stack ("layerwise"). A mean has none to share.
    """

    rank: PositiveInt
    sharing: Literal["none", "headwise", "key-value", "layerwise"] = "layerwise"
    projection: Literal["linear", "mean", "conv"] = "linear"
    bias: bool = True
    """Of queries, keys, values and the output, as DotProduct has them; projections have none."""

    def window(self, length: int) -> int:
        """How many tokens a projected key of a mean or a convolution is made of."""
        return math.ceil(length / self.rank)

    def max_length(self, length: int) -> int:
        return length

    def key_count(self, sizes: Sizes, tokens: int) -> int:
        return self.rank if self.projection == "linear" else math.ceil(tokens / self.window(sizes.length))

    def common(self, sizes: Sizes) -> nn.Module | None:
        return self.weights(sizes) if self.sharing == "layerwise" else None

    def build(
        self, sizes: Sizes, pattern: Pattern = EVERYTHING, score: ScoreModule | None = None, common: nn.Module | None = None
    ) -> nn.Module:
        return LowRankAttention(sizes, self, common)

    def weights(self, sizes: Sizes) -> Projections | None:
        """The weights of the projection, of one sublayer or of all; None of a mean."""
        if self.projection == "mean":
            return None
        w, widths = self.window(sizes.length), (sizes.head_dim, sizes.value_dim)
        if self.projection == "linear":
            drawn: list[tuple[tuple[int, ...], int]] = [((self.rank, sizes.length), sizes.length)] * 2
        else:
            drawn = [((w, width, width), w * width) for width in widths]
        heads = (sizes.heads,) if self.sharing == "none" else ()
        kinds = 2 if self.sharing in ("none", "headwise") else 1
        return Projections([((*heads, *shape), fan) for shape, fan in drawn[:kinds]])


class Projections(nn.Module):
    """The weights that make keys fewer, and values, unless these share them; a head's own, where each has them, come first.

    They begin with a standard deviation of 1/sqrt(fan), fan being the number of terms of a sum: then a projected key has the variance of
    a key, and scores begin as those of dot-product attention do. (The paper's theorem has 1/sqrt(rank), with which projected keys would be
    sqrt(length / rank) times as long as keys, and the softmax would begin as a choice of one.)
    """

    def __init__(self, shapes: Sequence[tuple[tuple[int, ...], int]]) -> None:
        super().__init__()
        drawn = [nn.Parameter(torch.randn(shape) * fan**-0.5) for shape, fan in shapes]
        self.keys = drawn[0]
        self.values = drawn[1] if len(drawn) > 1 else None

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Those of keys and those of values."""
        return self.keys, self.keys if self.values is None else self.values


class LowRankAttention(_Heads):
    """Attention of a stream over projected keys."""

    name = "attention"

    def __init__(self, sizes: Sizes, part: LowRank, common: nn.Module | None = None) -> None:
        super().__init__(sizes, DotProduct(bias=part.bias))
        self.q = nn.Linear(sizes.dim, self.widths[0], bias=part.bias)
        self.condense = WAYS[part.projection](sizes, part, common)
        initialise(self.q, self.widths[:1])
        initialise(self.out, [sizes.dim], sizes.gain)

    def forward(self, x: Tensor, context: Context, past: None, step: int) -> tuple[Tensor, None]:
        """y (batch, length, dim) for x (batch, length, dim); nothing is left behind, because nothing can continue."""
        n, most = x.shape[1], self.sizes.length
        if n > most:
            raise FormersError(
                f"{n} tokens do not fit the low-rank attention, whose projections have length={most}: "
                "give fewer tokens, or train with a larger length."
            )
        q = self.split(self.q(x), self.sizes.head_dim)
        k, v, valid = self.condense(x, context.valid)
        cache = KVCache(k, v, Range(0, k.shape[2]))
        return self.mix(q, cache, self.request(EVERYTHING, Range(0, n), cache.positions, valid, None), context, step), None


class Condense(nn.Module):
    """Makes the keys and values of a sublayer, fewer than there are tokens."""

    projections: Projections
    """What is learned of it, but not by a mean."""

    def __init__(self, sizes: Sizes, part: LowRank, common: nn.Module | None) -> None:
        super().__init__()
        self.heads, self.window = sizes.heads, part.window(sizes.length)
        self.widths = [sizes.heads * sizes.head_dim, sizes.heads * sizes.value_dim]
        self.kv = nn.Linear(sizes.dim, sum(self.widths), bias=part.bias)
        initialise(self.kv, self.widths)
        if common is not None:
            # The stack owns it. A module that is not registered here is saved, counted and optimised once; and because it is the
            # module that is kept, not its tensors, whatever replaces these (.to, loading, a copy of the whole model) does so for all.
            self.__dict__["projections"] = common
        elif (own := part.weights(sizes)) is not None:
            self.projections = own

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (batch, heads, projected keys, width) of x (batch, length, dim), real at some places, and which keys are real."""
        raise TypeError(f"{type(self).__name__} makes no keys: define forward(x, real).")

    def split(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of heads, from both packed side by side, (batch, m, heads * widths)."""
        k, v = (self.apart(t).transpose(1, 2) for t in torch.split(kv, self.widths, dim=-1))
        return k, v

    def apart(self, x: Tensor) -> Tensor:
        """x (..., heads * width) as (..., heads, width)."""
        return x.view(*x.shape[:-1], self.heads, -1)

    def windows(self, x: Tensor) -> Tensor:
        """x (batch, length, ...) cut into windows, (batch, windows, window, ...), 0 behind the last token."""
        spare = -x.shape[1] % self.window
        if spare:
            x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare))
        return x.view(x.shape[0], x.shape[1] // self.window, self.window, *x.shape[2:])

    def filled(self, real: Tensor | None) -> Tensor | None:
        """Which windows (batch, windows) hold a real token; None where all do."""
        return None if real is None else self.windows(real).any(dim=2)


class LinearCondense(Condense):
    """Every projected key is a learned sum over all tokens."""

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        e, f = (t[..., : x.shape[1]] for t in self.projections.both)
        if e.dim() == 3:
            k, v = self.split(blank(self.kv(x), real))
            return torch.einsum("hrn,bhnd->bhrd", e, k), torch.einsum("hrn,bhnd->bhrd", f, v), None  # E120
        x, weight, bias = blank(x, real), self.kv.weight, self.kv.bias
        if self.projections.values is None:
            return *self.split(project(e, x, real, weight, bias)), None
        biases = (None, None) if bias is None else torch.split(bias, self.widths)
        sides = zip((e, f), torch.split(weight, self.widths), biases, strict=True)
        return *self.split(torch.cat([project(rows, x, real, w, b) for rows, w, b in sides], dim=-1)), None


def project(e: Tensor, x: Tensor, real: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
    """E (x W + 1 b) as (E x) W + (E 1) b, which is the same and cheaper: W then meets `rank` rows instead of all tokens."""
    y = F.linear(e @ x, weight)  # E120
    if bias is None:
        return y
    sums = e.sum(dim=-1) if real is None else real.to(e.dtype) @ e.T
    return y + (sums[..., None] * bias).to(y.dtype)  # E120


class MeanCondense(Condense):
    """Every projected key is the mean over the real tokens of a window: since a mean of x W + b is (mean of x) W + b, x is averaged."""

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        here = x.new_ones(x.shape[:2], dtype=torch.bool) if real is None else real
        count = self.windows(here).sum(dim=2)
        mean = self.windows(blank(x, real)).sum(dim=2) / count.clamp(min=1)[..., None]  # E121
        return *self.split(self.kv(mean)), self.filled(real)


class ConvCondense(Condense):
    """Every projected key is a learned map of a window's keys, the same for every window."""

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        sides = zip(torch.split(blank(self.kv(x), real), self.widths, dim=-1), self.projections.both, strict=True)
        k, v = (self.convolve(self.apart(self.windows(t)), c) for t, c in sides)
        return k, v, self.filled(real)

    def convolve(self, x: Tensor, c: Tensor) -> Tensor:
        """Windows x (batch, windows, window, heads, width) by the kernel c, perhaps one for each head."""
        return torch.einsum("brwhd,hwde->bhre" if c.dim() == 4 else "brwhd,wde->bhre", x, c)  # E122


def blank(x: Tensor, real: Tensor | None) -> Tensor:
    """x (batch, length, width), 0 where no real token stands."""
    return x if real is None else x.masked_fill(~real[..., None], 0)


WAYS: dict[str, type[Condense]] = {"linear": LinearCondense, "mean": MeanCondense, "conv": ConvCondense}
