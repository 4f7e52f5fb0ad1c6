"""Multi-head attention (Vaswani et al., 2017, section 3.2.2).

head_i = attend(x W_i^q, c W_i^k, c W_i^v)        c = x for self-attention, the encoder's output for cross-attention
MultiHead(x, c) = [head_1; ...; head_h] W^o                                        E3

Keys have the width head_dim and values value_dim; W^q, W^k, W^v of all heads are one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.attend import explain_request, run, survey
from formers.attention.executors import dense
from formers.attention.request import Request
from formers.core import (
    Context,
    ExplicitPositions,
    FormersError,
    HiddenMemory,
    KVCache,
    Positions,
    Range,
    Sizes,
    Slot,
    StridedPositions,
    Watch,
)
from formers.core.initial import Law, draw
from formers.core.positions import EMPTY, explicit_positions
from formers.core.state import expect
from formers.patterns import Full, Pattern
from formers.patterns.text import pattern_text
from formers.score import ByDistance
from formers.score.base import ScoreModule

EVERYTHING = Full()
OTHER_DEVICES = "executors of other devices"
"""The end of the name of a note whose value is a function: move -> the status of every executor for the tensors that `move` returns."""
P = TypeVar("P", KVCache, HiddenMemory, KVCache | HiddenMemory)


class Attention(Slot):
    """How keys and values are computed and attended to."""

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in each training step, so that it needs the number of the step."""
        return any(kind.draws for kind in self.kinds if kind is not self)

    @property
    def kinds(self) -> tuple[Attention, ...]:
        """The attentions of the layers of a stack, used in turn."""
        return (self,)

    @property
    def ponders(self) -> int | None:
        """The largest number of ACT steps of a token; None without ACT."""
        return None

    @property
    def reads_source(self) -> bool:
        """Whether its sublayer attends to context.source itself, so that the block has no cross-attention."""
        return False

    def final_widths(self, sizes: Sizes) -> tuple[int, ...]:
        """The widths of the final states that its sublayer passes to a decoder: two for an LSTM, none for attention."""
        return ()

    @property
    def carries(self) -> bool:
        """Whether its state has a fixed size, instead of keys and values that grow with the tokens."""
        return False

    @property
    def allowed_patterns(self) -> tuple[type[Pattern], ...]:
        """The classes of patterns that it supports."""
        return (Pattern,)

    @final
    def at(self, layer: int) -> Attention:
        """The attention of a layer."""
        return self.kinds[layer % len(self.kinds)]

    def common(self, sizes: Sizes) -> nn.Module | None:
        """The module that the sublayers of all blocks share; the stack builds it once and owns it. None without one."""
        return None

    def max_length(self, length: int) -> int | None:
        """The largest length of a row, for a training length; None if unlimited."""
        return None

    def key_count(self, sizes: Sizes, tokens: int) -> int | None:
        """The number of keys for `tokens` tokens; None if every token has a key."""
        return None

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        """The self-attention sublayer; its forward is forward(x, context, past, step) -> (y, state)."""
        raise TypeError(f"{type(self).__name__} builds no sublayer: define build(sizes, pattern, score, common).")

    def build_cross(self, sizes: Sizes, source_dim: int) -> nn.Module:
        """The cross-attention sublayer over context.source; its forward is that of self-attention."""
        raise TypeError(f"{type(self).__name__} has no cross-attention.")


class DotProduct(Attention):
    """Multi-head dot-product attention, scaled by 1/sqrt(head_dim) unless `scaled` is False (an ablation)."""

    scaled: bool = True
    bias: bool = True

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> SelfAttention:
        return SelfAttention(sizes, pattern, score, self)

    def build_cross(self, sizes: Sizes, source_dim: int) -> CrossAttention:
        return CrossAttention(sizes, source_dim, self)


class _Heads(nn.Module):
    """The common code of self- and cross-attention: widths, splitting into heads, merging and the output projection."""

    name: str
    """The name under which an inspection records it."""

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

    def split_all(self, x: Tensor, parts: int) -> Sequence[Tensor]:
        """Splits x, the concatenation of the last `parts` of queries, keys and values, into heads; each as in `split`."""
        sizes = self.sizes
        if sizes.head_dim == sizes.value_dim:  # one view instead of several: it matters for the time of a decoding step
            batch, length, _ = x.shape
            return x.view(batch, length, parts, sizes.heads, sizes.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return [self.split(part, part.shape[2] // sizes.heads) for part in torch.split(x, self.widths[-parts:], dim=-1)]

    def merge(self, x: Tensor) -> Tensor:
        """The heads (batch, heads, length, value_dim), concatenated and projected."""
        batch, _, length, _ = x.shape
        return self.out((x if length == 1 else x.transpose(1, 2)).reshape(batch, length, self.widths[2]))  # E3

    def mix(self, q: Tensor, cache: KVCache, request: Request, context: Context, step: int) -> Tensor:
        """The output (batch, length, dim) for queries q over the keys and values of a cache."""
        if context.watch is not None:
            self.show(context.watch, q, cache.keys, cache.values, request, step)
        return self.merge(run(q, cache.keys, cache.values, request))

    def show(self, watch: Watch, q: Tensor, k: Tensor, v: Tensor, request: Request, step: int) -> None:
        """Records the weights, computed by the executor `dense`, and which executor runs, here and for tensors of another device."""
        watch.note(self.name, step, lambda: dense.weights(q, k, request))
        watch.note(f"{self.name} executor", step, lambda: explain_request(q, k, v, request))
        watch.note(f"{self.name} executors", step, lambda: survey(q, k, v, request))
        watch.note(f"{self.name} {OTHER_DEVICES}", step, lambda: lambda move: survey(move(q), move(k), move(v), request))

    def request(
        self,
        pattern: Pattern,
        queries: Positions,
        keys: Positions,
        valid: Tensor | None,
        bias: Tensor | ByDistance | None,
        first: Tensor | None = None,
        text: str | None = None,
    ) -> Request:
        """The request to an executor, with the scale and dropout of these heads."""
        rate = self.dropout if self.training else 0.0
        return Request(pattern, queries, keys, self.sizes.heads, self.scale, valid, bias, rate, first, text)


class SelfAttention(_Heads):
    """Self-attention, over the tokens of x and the cached past."""

    name = "attention"

    def __init__(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None, part: DotProduct) -> None:
        super().__init__(sizes, part)
        self.patterns = [pattern.at(step) for step in range(sizes.depth_steps)]
        self.causal = [each.is_causal for each in self.patterns]
        self.texts = [pattern_text(each) for each in self.patterns]
        self.score = score
        self.qkv = nn.Linear(sizes.dim, sum(self.widths), bias=part.bias)
        initialise(self.qkv, self.widths, law=sizes.initialisation)
        initialise(self.out, [sizes.dim], sizes.gain, sizes.initialisation)

    def forward(self, x: Tensor, context: Context, past: KVCache | HiddenMemory | None, step: int) -> tuple[Tensor, KVCache | None]:
        """y (batch, length, dim) for x (batch, length, dim) at a depth step, and the KV cache."""
        if not (past is None or isinstance(past, (KVCache, HiddenMemory))):
            expect(KVCache, past)
        pattern, causal = self.patterns[step], self.causal[step]
        # The pattern may depend on the end of the row; causal rows may continue. torch.compile cannot build a pattern: the request does.
        if context.valid is None and not causal and not torch.compiler.is_compiling():
            pattern = pattern.of(x.shape[1])
        score, reach, furthest = self.score, None, None
        if score is not None:
            reach, furthest = score.reach(step), score.max_reach(step)
        if past is not None and furthest is not None:  # HiddenMemory is trimmed by its owner, a KVCache by next_cache
            past = within(past, reach if isinstance(past, HiddenMemory) else furthest)
        q, cache = self.project_qkv(x, past, context.positions)
        seen = cache if reach is None else within(cache, reach + x.shape[1])
        # Real tokens come first in a row, so that with a causal pattern no real token sees padding.
        valid = None if causal else context.valid
        bias = None
        if score is not None:
            q, bias = score(x, q, seen.positions, context, self.scale, step)
        first = None if context.episodes is None else context.episodes.first
        y = self.mix(q, seen, self.request(pattern, context.positions, seen.positions, valid, bias, first, self.texts[step]), context, step)
        if not context.keep:
            return y, None
        return y, next_cache(cache, pattern, context, furthest)

    def reach(self, step: int) -> int | None:
        """The number of distances that the score covers; None if unlimited."""
        return None if self.score is None else self.score.reach(step)

    def project_qkv(self, x: Tensor, past: KVCache | HiddenMemory | None, positions: Positions) -> tuple[Tensor, KVCache]:
        """The queries of x, and the keys and values of the past and of x."""
        if not isinstance(past, HiddenMemory):
            q, k, v = self.split_all(self.qkv(x), 3)
            return q, KVCache(k, v, positions) if past is None else past.append(k, v, positions)
        own = self.widths[0]
        both = past.append(x, positions)
        if type(self.qkv) is not nn.Linear:  # a wrapper, such as an adapter, is applied as a whole
            q, k, v = self.split_all(self.qkv(both.states), 3)
            return q[:, :, -x.shape[1] :], KVCache(k, v, both.positions)
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(x, weight[:own], None if bias is None else bias[:own])
        kv = F.linear(both.states, weight[own:], None if bias is None else bias[own:])  # E50
        (k, v), q = self.split_all(kv, 2), self.split(q, self.sizes.head_dim)
        return q, KVCache(k, v, both.positions)


class CrossAttention(_Heads):
    """Cross-attention over an encoder's output."""

    name = "cross"

    def __init__(self, sizes: Sizes, source_dim: int, part: DotProduct) -> None:
        super().__init__(sizes, part)
        self.q = nn.Linear(sizes.dim, self.widths[0], bias=part.bias)
        self.kv = nn.Linear(source_dim, sum(self.widths[1:]), bias=part.bias)
        initialise(self.q, self.widths[:1], law=sizes.initialisation)
        initialise(self.kv, self.widths[1:], law=sizes.initialisation)
        initialise(self.out, [sizes.dim], sizes.gain, sizes.initialisation)

    def forward(self, x: Tensor, context: Context, past: KVCache | None, step: int) -> tuple[Tensor, KVCache | None]:
        """y (batch, length, dim) for x over context.source (batch, n, source_dim), whose keys and values are projected once and cached."""
        q = self.split(self.q(x), self.sizes.head_dim)
        queries = Range(0, x.shape[1])
        if past is not None:
            expect(KVCache, past)
            past = replace(past, keys=past.keys.to(q.dtype), values=past.values.to(q.dtype))
            return self.mix(q, past, self.request(EVERYTHING, queries, past.positions, None, None), context, step), past
        if context.source is None:
            raise FormersError("there is neither a source nor a state with its keys: give source.")
        source, valid = context.source.hidden, context.source.valid
        k, v = self.split_all(self.kv(source), 2)
        cache = KVCache(k, v, Range(0, source.shape[1]))
        y = self.mix(q, cache, self.request(EVERYTHING, queries, cache.positions, valid, None), context, step)
        return y, replace(cache.detach(), positions=real(cache.positions, valid)) if context.keep else None


def within(past: P, reach: int | None) -> P:
    """The past without keys that are at least `reach` positions back in every row; all of it if reach is None."""
    if reach is None:
        return past
    # In a hidden-state memory empty slots come first, so that the last slots are the newest in every row. In a cache whose rows have
    # different positions, a key n solid slots back is at least n tokens back.
    if (
        isinstance(past, KVCache)
        and not isinstance(past.positions, Range)
        and (isinstance(past.positions, StridedPositions) or past.solid < reach)
    ):
        return past
    return past.last(reach)


def next_cache(cache: KVCache, pattern: Pattern, context: Context, reach: int | None = None) -> KVCache:
    """The part of a cache that later queries may see, limited by their pattern and by the reach of a score; detached."""
    cache, where = cache.detach(), cache.positions
    if context.valid is not None:  # slots after a row's real tokens are empty; the next tokens come after them
        if isinstance(where, Range):  # before the segment there is nothing, or a memory of zeros
            where = real(where, F.pad(context.valid, (where.length - context.valid.shape[1], 0), value=True))
        return replace(cache, positions=where, solid=0)
    # What `cached` contains depends on the position in many ways, each of which would be a graph of torch.compile; `reach` is a constant.
    if not isinstance(where, ExplicitPositions) and not torch.compiler.is_compiling():
        return within(cache, reach).keep_only(pattern.cached(where.stop))
    return within(within(cache, pattern.reach), reach)


def real(positions: Positions, valid: Tensor | None) -> Positions:
    """The positions, empty where valid (batch, length) is False."""
    if valid is None:
        return positions
    return explicit_positions(positions.tensor(valid.device).expand(valid.shape).masked_fill(~valid, EMPTY), positions.stop, positions)


@torch.no_grad()
def initialise(linear: nn.Linear, widths: list[int], gain: float = 1.0, law: Law = "xavier") -> None:
    """Initialises each of the matrices stacked in one; biases are 0."""
    for weight in torch.split(linear.weight, widths):
        draw(weight, law, gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
