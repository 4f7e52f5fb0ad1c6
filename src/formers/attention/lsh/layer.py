"""LSH attention (Kitaev et al., 2020, "Reformer: The Efficient Transformer", section 2).

S_i = { j <= i : h_r(q_j) = h_r(q_i) in some round r, and j is in reach of i in it }     each key once                  E93
a_i = softmax over S_i \\ {i} of q_i . k_j / sqrt(d_h);  i attends to itself if S_i has no other       k as in E92      E94

The paper sorts the tokens of a round by (bucket, position), splits them into chunks, and lets a query see its own chunk and the one
before: reach "chunk". A later token may shift the chunk boundaries, so that an earlier query gains or loses keys, none of them in its
future. With reach "bucket" a query sees its whole buckets: later tokens change nothing, and decoding with a cache equals one pass.
The paper counts a pair that occurs in several rounds once; other implementations count it each time, and let a query see keys of other
buckets in its chunks: `duplicates` and `across_buckets`. The paper's sum over rounds, with weights exp(z_r - z) and log N subtracted
from the scores, is the softmax over the union.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from formers.attention.attend import Choice, Verdict
from formers.attention.executors import dense
from formers.attention.executors.flex_kernel import KernelRefused
from formers.attention.lsh import batched, chunked
from formers.attention.lsh.batched import keys_of
from formers.attention.lsh.decisions import decide_once
from formers.attention.lsh.decoding import LSHCache, attend_all, attend_buckets
from formers.attention.lsh.hashing import (
    Hashed,
    check_buckets,
    drawn,
    factors,
    fitting,
    fixed_rotations,
    fixed_rotations_on,
    hashes,
    in_order,
    rotations,
)
from formers.attention.lsh.kernel import RULES, attend
from formers.attention.lsh.paths import choose, explained, refuse, verdicts, warn_of_memory
from formers.attention.lsh.reference import Rules, pair_counts, term, visible_pairs
from formers.attention.multihead import EVERYTHING, OTHER_DEVICES, Attention, real
from formers.attention.request import Request
from formers.attention.shared_qk import SharedHeads, unit_keys
from formers.core import Context, FormersError, KVCache, Range, Sizes, Watch
from formers.core.devices import on_host
from formers.core.random import fresh_seed
from formers.core.state import expect
from formers.patterns import Pattern
from formers.score.base import ScoreModule

DECODES = "the keys of the token's buckets"
DECODES_ALL = "all cached keys, with those of other buckets masked: finding the token's would wait for the device"


class LSH(Attention):
    """A query attends to the keys that are hashed into its bucket in at least one round; keys are queries normalised to length 1.

    By default there are two `buckets` per chunk of a row of the training length; give a number or factors. In training, rotations are drawn
    anew in each step; in evaluation they are fixed, and there may be more rounds.
    """

    rounds: PositiveInt = 2
    chunk: PositiveInt = 64
    buckets: PositiveInt | tuple[PositiveInt, ...] | None = None
    reach: Literal["chunk", "bucket"] = "bucket"
    duplicates: bool = False
    across_buckets: bool = False
    itself: Literal["alone", "always"] = "alone"
    look_back: NonNegativeInt = 1
    look_ahead: NonNegativeInt = 0
    wrap: Literal["round", "rounds"] = "round"
    scaled: bool = True
    bias: bool = False
    evaluation_rounds: PositiveInt | None = None
    seed: int = 0
    key_epsilon: NonNegativeFloat = 0.0
    """Added to the mean square of a query before it is normalised to a key: 1e-6 in trax and transformers."""

    @field_validator("buckets")
    @classmethod
    def _even(cls, buckets: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if buckets is not None:
            check_buckets(buckets)
        return buckets

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.across_buckets and self.reach == "bucket":
            raise FormersError(
                "across_buckets=True includes keys of other buckets in the query's chunks, but reach='bucket' has no chunks: "
                "use reach='chunk', or across_buckets=False."
            )
        return self

    @property
    def draws(self) -> bool:
        return True

    def factors(self, length: int) -> tuple[int, ...]:
        """The number of buckets for rows of a length, as factors."""
        if isinstance(self.buckets, tuple):
            return self.buckets
        return factors(self.buckets or fitting(length, self.chunk))

    def rules(self, causal: bool) -> Rules:
        """The rules of which keys a query sees."""
        return Rules(causal, **{name: value for name, value in self if name in Rules._fields})

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return LSHAttention(sizes, pattern, self)


class ByLayer(Attention):
    """A sequence of attentions that the layers use in turn, as in Reformers with local and LSH layers; one part is used in all layers."""

    parts: tuple[Attention, ...]

    def __init__(self, *parts: Any, **fields: Any) -> None:
        if parts and "parts" not in fields:
            fields["parts"] = parts[0] if len(parts) == 1 and isinstance(parts[0], (tuple, list)) else parts
        super().__init__(**fields)

    @field_validator("parts")
    @classmethod
    def _some(cls, parts: tuple[Attention, ...]) -> tuple[Attention, ...]:
        if not parts or any(len(part.kinds) > 1 for part in parts):
            raise FormersError("ByLayer needs one or more attentions other than ByLayer: give them as in ByLayer(LSH(), DotProduct()).")
        return parts

    @property
    def kinds(self) -> tuple[Attention, ...]:
        return tuple(kind for part in self.parts for kind in part.kinds)

    @property
    def ponders(self) -> int | None:
        return max((kind.ponders for kind in self.kinds if kind.ponders is not None), default=None)

    @property
    def reads_source(self) -> bool:
        return any(kind.reads_source for kind in self.kinds)

    @property
    def carries(self) -> bool:
        return all(kind.carries for kind in self.kinds)

    def common(self, sizes: Sizes) -> nn.Module | None:
        return self.kinds[0].common(sizes) if len(self.kinds) == 1 else None

    def max_length(self, length: int) -> int | None:
        return min((limit for kind in self.kinds if (limit := kind.max_length(length)) is not None), default=None)

    def key_count(self, sizes: Sizes, tokens: int) -> int | None:
        return self.kinds[0].key_count(sizes, tokens) if len(self.kinds) == 1 else None


def with_rounds(attention: Attention, rounds: int) -> Attention:
    """The attention with `rounds` hashing rounds in evaluation; unchanged if it does not hash."""
    if isinstance(attention, ByLayer):
        return ByLayer(*(with_rounds(part, rounds) for part in attention.parts))
    return attention.replace(evaluation_rounds=rounds) if isinstance(attention, LSH) else attention


class LSHAttention(SharedHeads):
    """Self-attention over the keys that are found by hashing."""

    def __init__(self, sizes: Sizes, pattern: Pattern, part: LSH) -> None:
        super().__init__(sizes, part.scaled, part.bias)
        self.part = part
        self.factors = part.factors(sizes.length)
        self.rules = [part.rules(pattern.at(step).is_causal) for step in range(sizes.depth_steps)]
        self.numbers = [RULES.number(rules) for rules in self.rules]

    def forward(self, x: Tensor, context: Context, past: LSHCache | None, step: int) -> tuple[Tensor, LSHCache | None]:
        """y (batch, length, dim) for x (batch, length, dim) at a depth step, and the LSH cache."""
        q, v = self.split_all(self.qv(x), 2)
        rules, drawn_by = self.rules[step], self.draw(context, step)
        if past is not None:
            self.check(past)
            buckets = decide_once(context, "buckets", step, lambda: self.hash(q, drawn_by, context))
            held = past.append(self.keys(q), v, buckets, context.positions)
            y, read = (attend_buckets if on_host(q) else attend_all)(q, held, rules, self.scale)
            if context.watch is not None:
                context.watch.note("attention executors", step, lambda: _decodes(q))
                context.watch.note(f"attention {OTHER_DEVICES}", step, lambda: lambda move: _decodes(move(q)))
                context.watch.note("keys read", step, lambda: read)
            return self.merge(y), held.detach() if context.keep else None
        hashed = decide_once(context, "buckets", step, lambda: in_order(self.hash(q, drawn_by, context)))
        path = choose(q, rules, self.rounds)
        if context.watch is not None:
            self.record(context.watch, q, hashed, context, step, path)
        y = self.attend_found(path.name, q, v, hashed, context, step)
        if not context.keep:
            return self.merge(y), None
        where = real(context.positions, context.valid)
        marks = KVCache(hashed.buckets.transpose(2, 3), v.detach()[..., :0], where)
        return self.merge(y), LSHCache.of(KVCache(self.keys(q), v, where).detach(), marks, math.prod(self.factors), hashed.order)

    def attend_found(self, path: str, q: Tensor, v: Tensor, hashed: Hashed, context: Context, step: int) -> Tensor:
        """Attention (batch, heads, n, value_dim) over the keys found by hashing, by one of the implementations of paths.py."""
        rules, rate = self.rules[step], self.dropout if self.training else 0.0
        if path == "dense":
            return self.dense_attention(q, v, hashed, context, step)
        if path == "sdpa":
            return self.masked(q, v, hashed, context, rules)
        if path == "hashed":
            return attend(q, v, hashed, self.numbers[step], self.scale, context.valid, rate)
        if path == "chunked":
            return chunked.attend(q, v, hashed, rules, self.scale, context.valid, rate)
        try:
            return batched.attend(q, v, hashed, rules, self.scale, context.valid, rate)
        except KernelRefused as refusal:  # another implementation runs from now on
            refuse(q, rules, self.rounds, refusal)
            return self.attend_found(choose(q, rules, self.rounds).name, q, v, hashed, context, step)

    def keys(self, q: Tensor) -> Tensor:
        """The keys of queries."""
        return unit_keys(q, self.part.key_epsilon)

    def record(self, watch: Watch, q: Tensor, hashed: Hashed, context: Context, step: int, path: Choice) -> None:
        """Records the buckets, the weights, computed by the executor `dense`, and which executor runs, here and on another device."""
        watch.note("buckets", step, lambda: hashed.buckets)
        watch.note(self.name, step, lambda: dense.weights(q, self.keys(q), self.dense_request(q, hashed, context, step)))
        watch.note(f"{self.name} executor", step, lambda: explained(path))
        watch.note(f"{self.name} executors", step, lambda: verdicts(path))
        watch.note(f"{self.name} {OTHER_DEVICES}", step, lambda: lambda move: verdicts(choose(move(q), self.rules[step], self.rounds)))

    def check(self, past: LSHCache) -> None:
        """Raises FormersError for the state of a layer with other buckets or rounds."""
        rounds, buckets = expect(LSHCache, past).starts.shape[2], past.starts.shape[3] - 2
        own = self.rounds, math.prod(self.factors)
        if (rounds, buckets) != own:
            raise FormersError(
                f"the state was hashed in {rounds} rounds into {buckets} buckets, but this model has {own[0]} rounds and {own[1]} buckets: "
                "another model made it; start from initial_state(batch)."
            )

    @property
    def rounds(self) -> int:
        """The hashing rounds of a pass."""
        return self.part.rounds if self.training else self.part.evaluation_rounds or self.part.rounds

    def draw(self, context: Context, step: int) -> tuple[int, ...]:
        """The random keys of the rotations of a pass: fixed in evaluation; in training from the step number, else from torch's generator.

        A recomputing pass also draws, although it does not hash: so the generator is in the same state as after the first pass, and dropout
        draws the same numbers.
        """
        seed = self.part.seed
        if not self.training or context.keep:  # a continued row must be hashed as before
            return (seed, step)
        if context.update is not None:
            return (seed, step, context.update)
        return (step,) if torch.compiler.is_compiling() else (fresh_seed(), step)

    def hash(self, q: Tensor, keys: tuple[int, ...], context: Context) -> Tensor:
        """The buckets (batch, heads, rounds, length) of queries, by rotations of these random keys; padding has an extra last bucket."""
        _, heads, _, width = q.shape
        columns = sum(self.factors) // 2
        if torch.compiler.is_compiling():
            directions = drawn(heads, width, self.rounds, columns, list(keys))
        else:
            shape = heads, width, self.rounds, columns
            if self.training and not context.keep:
                directions = rotations(*shape, *keys)
            else:
                directions = fixed_rotations(*shape, *keys) if on_host(q) else fixed_rotations_on(q.device, *shape, *keys)
        buckets = hashes(q, directions, self.factors)
        if context.valid is not None:
            buckets.masked_fill_(~context.valid[:, None, None, :], math.prod(self.factors))
        return buckets

    def masked(self, q: Tensor, v: Tensor, hashed: Hashed, context: Context, rules: Rules) -> Tensor:
        """Attention over all pairs by the fused kernel, with pairs of different buckets masked: the fastest for short rows."""
        seen = visible_pairs(hashed.buckets, rules, context.valid)
        if rules.duplicates:
            times = pair_counts(hashed, rules, context.valid).clamp(min=1).to(q.dtype)
            seen = times.log().masked_fill(~seen, float("-inf"))
        warn_of_memory(q)
        k = self.keys(q) if on_host(q) else keys_of(q, rules)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, scale=self.scale)

    def dense_attention(self, q: Tensor, v: Tensor, hashed: Hashed, context: Context, step: int) -> Tensor:
        """Attention by the full matrix of weights, as in the equation."""
        return dense.run(q, self.keys(q), v, self.dense_request(q, hashed, context, step))  # E94

    def dense_request(self, q: Tensor, hashed: Hashed, context: Context, step: int) -> Request:
        """The request to dense attention: all pairs, with a term that masks those of different buckets."""
        n = q.shape[2]
        return self.request(EVERYTHING, Range(0, n), Range(0, n), None, term(hashed, self.rules[step], context.valid, q.dtype))


def _decodes(q: Tensor) -> tuple[Verdict, ...]:
    """How one more token is computed on the device of its query."""
    return (Verdict("bucketed", True, DECODES if on_host(q) else DECODES_ALL, None),)
