"""Low-rank attention (Wang et al., 2020, "Linformer: Self-Attention with Linear Complexity").

k' = E k,   v' = F v                  E, F in R^{rank x length}, without bias: learned                       E120
k'_r = mean of k_j in window r        windows of w = ceil(length / rank) tokens, no weights                  E121
k'_r = sum_{t<w} k_{rw+t} C_t         C in R^{w x d_h x d_h}: a convolution with kernel and stride w         E122
head = softmax(q k'^T / sqrt(d_h)) v'                                          E1 and E2, over at most `rank` keys

k = x W^k + b^k are the keys of all tokens, and v likewise. Each projected key depends on all tokens of the row, also later ones. So there
is no causal form, and patterns do not apply. Padding is set to 0 before the projection. For n < length tokens the first n columns of
E are used, as if the row were padded with zeros.
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
    """Keys and values are projected along the length to at most `rank` of each, so that time is linear in the length.

    The projection weights are separate for each head, and for keys and values (sharing "none"); shared by all heads of a layer
    ("headwise"); also by its keys and values ("key-value"); or by the whole stack ("layerwise"). "mean" has no weights.
    """

    rank: PositiveInt
    sharing: Literal["none", "headwise", "key-value", "layerwise"] = "layerwise"
    projection: Literal["linear", "mean", "conv"] = "linear"
    bias: bool = True
    """Biases of queries, keys, values and the output, as in DotProduct; the projections have none."""

    def window(self, length: int) -> int:
        """The number of tokens per projected key, for a mean or a convolution."""
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
        """The projection weights of one sublayer, or of all; None for a mean."""
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
    """The projection weights of keys, and of values unless shared; with a leading dimension for heads if they are separate.

    The initial standard deviation is 1/sqrt(fan), where fan is the number of terms of a sum: projected keys then have the variance of keys,
    and scores start as in dot-product attention. (The paper's theorem has 1/sqrt(rank); projected keys would then be sqrt(length / rank)
    times as long as keys, and the softmax would start almost one-hot.)
    """

    def __init__(self, shapes: Sequence[tuple[tuple[int, ...], int]]) -> None:
        super().__init__()
        drawn = [nn.Parameter(torch.randn(shape) * fan**-0.5) for shape, fan in shapes]
        self.keys = drawn[0]
        self.values = drawn[1] if len(drawn) > 1 else None

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """The weights of keys and of values."""
        return self.keys, self.keys if self.values is None else self.values


class LowRankAttention(_Heads):
    """Self-attention over projected keys."""

    name = "attention"

    def __init__(self, sizes: Sizes, part: LowRank, common: nn.Module | None = None) -> None:
        super().__init__(sizes, DotProduct(bias=part.bias))
        self.q = nn.Linear(sizes.dim, self.widths[0], bias=part.bias)
        self.condense = PROJECTIONS[part.projection](sizes, part, common)
        initialise(self.q, self.widths[:1])
        initialise(self.out, [sizes.dim], sizes.gain)

    def forward(self, x: Tensor, context: Context, past: None, step: int) -> tuple[Tensor, None]:
        """y (batch, length, dim) for x (batch, length, dim); there is no state, because no row can be continued."""
        n, most = x.shape[1], self.sizes.length
        if n > most:
            raise FormersError(
                f"{n} tokens do not fit the low-rank attention of length={most}: give fewer tokens, or train with a larger length."
            )
        q = self.split(self.q(x), self.sizes.head_dim)
        k, v, valid = self.condense(x, context.valid)
        cache = KVCache(k, v, Range(0, k.shape[2]))
        return self.mix(q, cache, self.request(EVERYTHING, Range(0, n), cache.positions, valid, None), context, step), None


class Condense(nn.Module):
    """Computes the projected keys and values of a sublayer."""

    projections: Projections
    """The projection weights; not set for a mean."""

    def __init__(self, sizes: Sizes, part: LowRank, common: nn.Module | None) -> None:
        super().__init__()
        self.heads, self.window = sizes.heads, part.window(sizes.length)
        self.widths = [sizes.heads * sizes.head_dim, sizes.heads * sizes.value_dim]
        self.kv = nn.Linear(sizes.dim, sum(self.widths), bias=part.bias)
        initialise(self.kv, self.widths)
        if common is not None:
            # The stack owns it. A module that is not registered here is saved, counted and optimised once. The module is referenced, not
            # its tensors, so that replaced tensors (.to, loading, a copy of the model) are replaced everywhere.
            self.__dict__["projections"] = common
        elif (own := part.weights(sizes)) is not None:
            self.projections = own

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (batch, heads, projected keys, width) for x (batch, length, dim) with the mask `real`; and the mask of keys."""
        raise TypeError(f"{type(self).__name__} computes no keys: define forward(x, real).")

    def split(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values per head, from their concatenation (batch, m, heads * widths)."""
        k, v = (self.apart(t).transpose(1, 2) for t in torch.split(kv, self.widths, dim=-1))
        return k, v

    def apart(self, x: Tensor) -> Tensor:
        """x (..., heads * width) as (..., heads, width)."""
        return x.view(*x.shape[:-1], self.heads, -1)

    def windows(self, x: Tensor) -> Tensor:
        """x (batch, length, ...) split into windows, (batch, windows, window, ...), padded with 0."""
        spare = -x.shape[1] % self.window
        if spare:
            x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare))
        return x.view(x.shape[0], x.shape[1] // self.window, self.window, *x.shape[2:])

    def filled(self, real: Tensor | None) -> Tensor | None:
        """The windows (batch, windows) with a real token; None if all have one."""
        return None if real is None else self.windows(real).any(dim=2)


class LinearCondense(Condense):
    """Every projected key is a learned weighted sum over all tokens."""

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
    """E (x W + 1 b) as (E x) W + (E 1) b: equal, and cheaper, because W is applied to `rank` rows instead of all tokens."""
    y = F.linear(e @ x, weight)  # E120
    if bias is None:
        return y
    sums = e.sum(dim=-1) if real is None else real.to(e.dtype) @ e.T
    return y + (sums[..., None] * bias).to(y.dtype)  # E120


class MeanCondense(Condense):
    """Every projected key is the mean over the real tokens of a window; x is averaged, since mean(x W + b) = mean(x) W + b."""

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        here = x.new_ones(x.shape[:2], dtype=torch.bool) if real is None else real
        count = self.windows(here).sum(dim=2)
        mean = self.windows(blank(x, real)).sum(dim=2) / count.clamp(min=1)[..., None]  # E121
        return *self.split(self.kv(mean)), self.filled(real)


class ConvCondense(Condense):
    """Every projected key is a learned linear map of a window's keys, the same for every window."""

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        sides = zip(torch.split(blank(self.kv(x), real), self.widths, dim=-1), self.projections.both, strict=True)
        k, v = (self.convolve(self.apart(self.windows(t)), c) for t, c in sides)
        return k, v, self.filled(real)

    def convolve(self, x: Tensor, c: Tensor) -> Tensor:
        """The convolution of windows x (batch, windows, window, heads, width) with the kernel c, shared or per head."""
        return torch.einsum("brwhd,hwde->bhre" if c.dim() == 4 else "brwhd,wde->bhre", x, c)  # E122


def blank(x: Tensor, real: Tensor | None) -> Tensor:
    """x (batch, length, width), 0 at padding."""
    return x if real is None else x.masked_fill(~real[..., None], 0)


PROJECTIONS: dict[str, type[Condense]] = {"linear": LinearCondense, "mean": MeanCondense, "conv": ConvCondense}
