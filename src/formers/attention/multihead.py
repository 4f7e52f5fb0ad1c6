"""Multi-head attention (Vaswani et al., 2017, section 3.2.2).

head_i = attend(x W_i^q, c W_i^k, c W_i^v)        c = x for self-attention, the encoder's output for cross-attention
MultiHead(x, c) = [head_1; ...; head_h] W^o                                        E3

Keys are head_dim wide and values value_dim; W^q, W^k, W^v of all heads are one matrix.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from formers.attention.attend import attend
from formers.core import Cache, FormersError, Index, Positions, Range, Sizes, Slot, Stream
from formers.core.positions import EMPTY
from formers.patterns import Full, Pattern
from formers.score import NoScore, Score

EVERYTHING = Full()


class Attention(Slot):
    """How keys are found or made."""

    def build(self, sizes: Sizes, pattern: Pattern, score: Score) -> nn.Module:
        """The self-attention sublayer; its forward is forward(x, stream, past, step) -> (y, what it leaves behind)."""
        raise TypeError(f"{type(self).__name__} builds no sublayer: define build(sizes, pattern, score).")

    def build_cross(self, sizes: Sizes, source_dim: int) -> nn.Module:
        """The cross-attention sublayer over stream.source; its forward is that of self-attention."""
        raise TypeError(f"{type(self).__name__} has no cross-attention.")


class DotProduct(Attention):
    """Multi-head dot-product attention, scaled by 1/sqrt(head_dim) unless `scaled` is False (an ablation)."""

    scaled: bool = True
    bias: bool = True

    def build(self, sizes: Sizes, pattern: Pattern, score: Score = NoScore()) -> SelfAttention:
        return SelfAttention(sizes, pattern, score, self)

    def build_cross(self, sizes: Sizes, source_dim: int) -> CrossAttention:
        return CrossAttention(sizes, source_dim, self)


class _Heads(nn.Module):
    """What self- and cross-attention share: the widths, the way into heads and the way out."""

    def __init__(self, sizes: Sizes, part: DotProduct) -> None:
        super().__init__()
        self.sizes = sizes
        self.dropout = sizes.attention_dropout
        self.scale = sizes.head_dim**-0.5 if part.scaled else 1.0
        self.widths = [sizes.heads * w for w in (sizes.head_dim, sizes.head_dim, sizes.value_dim)]
        self.out = nn.Linear(self.widths[2], sizes.dim, bias=part.bias)

    def split(self, x: Tensor, width: int) -> Tensor:
        """(batch, length, heads * width) as (batch, heads, length, width)."""
        return x.view(x.shape[0], x.shape[1], self.sizes.heads, width).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """The heads (batch, heads, length, value_dim), concatenated and projected."""
        return self.out(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], self.widths[2]))  # E3

    def mix(self, q: Tensor, cache: Cache, pattern: Pattern, queries: Positions, valid: Tensor | None, bias: Tensor | None) -> Tensor:
        """The heads of queries q over the keys and values of a cache."""
        y = attend(
            q, cache.keys, cache.values, pattern,
            mask=valid, bias=bias, queries=queries, keys=cache.positions, scale=self.scale, dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return self.merge(y)


class SelfAttention(_Heads):
    """Attention of a stream over itself and over what came before it."""

    def __init__(self, sizes: Sizes, pattern: Pattern, score: Score, part: DotProduct) -> None:
        super().__init__(sizes, part)
        self.patterns = [pattern.at(step) for step in range(sizes.steps)]
        self.score = score.build(sizes)
        self.qkv = nn.Linear(sizes.dim, sum(self.widths), bias=part.bias)
        initialise(self.qkv, self.widths)
        initialise(self.out, [sizes.dim], sizes.gain)

    def forward(self, x: Tensor, stream: Stream, past: Cache | None, step: int) -> tuple[Tensor, Cache | None]:
        """y (batch, length, dim) for x (batch, length, dim) at a depth step, and the keys and values for the stream's continuation."""
        pattern = self.patterns[step]
        q, k, v = self.qkv(x).split(self.widths, dim=-1)
        q, k, v = self.split(q, self.sizes.head_dim), self.split(k, self.sizes.head_dim), self.split(v, self.sizes.value_dim)
        cache = Cache(k, v, stream.positions) if past is None else past.append(k, v, stream.positions)
        # Real tokens come first in a row, so that a causal pattern never shows padding to one of them.
        valid = None if pattern.is_causal else stream.valid
        bias = None
        if self.score is not None:
            q, bias = self.score(x, q, cache.keys, stream.positions, cache.positions, self.scale, step)
        y = self.mix(q, cache, pattern, stream.positions, valid, bias)
        return y, leave_behind(cache, pattern, stream) if stream.keep else None


class CrossAttention(_Heads):
    """Attention of a stream over an encoder's output."""

    def __init__(self, sizes: Sizes, source_dim: int, part: DotProduct) -> None:
        super().__init__(sizes, part)
        self.q = nn.Linear(sizes.dim, self.widths[0], bias=part.bias)
        self.kv = nn.Linear(source_dim, sum(self.widths[1:]), bias=part.bias)
        initialise(self.q, self.widths[:1])
        initialise(self.kv, self.widths[1:])
        initialise(self.out, [sizes.dim], sizes.gain)

    def forward(self, x: Tensor, stream: Stream, past: Cache | None, step: int) -> tuple[Tensor, Cache | None]:
        """y (batch, length, dim) for x over stream.source (batch, n, source_dim), projected once and then read from `past`."""
        q = self.split(self.q(x), self.sizes.head_dim)
        queries = Range(0, x.shape[1])
        if past is not None:
            past = replace(past, keys=past.keys.to(q.dtype), values=past.values.to(q.dtype))
            return self.mix(q, past, EVERYTHING, queries, None, None), past
        if stream.source is None:
            raise FormersError("there is no source to attend to, and no state that has read one: give source.")
        source, valid = stream.source
        k, v = self.kv(source).split(self.widths[1:], dim=-1)
        cache = Cache(self.split(k, self.sizes.head_dim), self.split(v, self.sizes.value_dim), Range(0, source.shape[1]))
        y = self.mix(q, cache, EVERYTHING, queries, valid, None)
        return y, replace(cache.detach(), positions=real(cache.positions, valid)) if stream.keep else None


def leave_behind(cache: Cache, pattern: Pattern, stream: Stream) -> Cache:
    """The part of a cache that queries after this stream may still look at."""
    cache = cache.detach()
    if stream.valid is not None and isinstance(cache.positions, Range):
        return replace(cache, positions=real(cache.positions, stream.valid))
    if isinstance(cache.positions, Range):
        return cache.last(cache.positions.stop - max(pattern.oldest(cache.positions.stop), cache.positions.start))
    return cache


def real(positions: Positions, valid: Tensor | None) -> Positions:
    """The positions, empty where valid (batch, length) is False."""
    if valid is None:
        return positions
    return Index(positions.tensor(valid.device).expand(valid.shape).masked_fill(~valid, EMPTY), positions.stop)


@torch.no_grad()
def initialise(linear: nn.Linear, widths: list[int], gain: float = 1.0) -> None:
    """Xavier-uniform for each of the matrices packed into one; biases 0."""
    for weight in torch.split(linear.weight, widths):
        nn.init.xavier_uniform_(weight, gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
