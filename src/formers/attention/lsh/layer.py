"""LSH attention (Kitaev et al., 2020, "Reformer: The Efficient Transformer", section 2).

S_i = { j <= i : h_r(q_j) = h_r(q_i) in some round r, and j is in reach of i there }      each key once                  E93
a_i = softmax over S_i \\ {i} of q_i . k_j / sqrt(d_h);  i looks at itself where S_i holds no other       k as in E92      E94

The paper sorts the tokens of a round by (bucket, position), cuts them into chunks, and lets a query look at its own chunk and the one
before: reach "chunk". Where a later token moves the boundaries, an earlier query may gain or lose keys, none of which is in its future.
With reach "bucket" a query meets its whole buckets: nothing that comes later changes anything, and a cache answers as one pass does.
The paper counts a pair that meets in several rounds once; the codes of others count it as often, and let a query see keys of other
buckets in its chunks: `duplicates` and `across_buckets`. What is summed over rounds with weights exp(z_r - z) and log N taken off, as
the paper writes it, is the softmax over the union.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from formers.attention.attend import Verdict
from formers.attention.executors import dense
from formers.attention.lsh.decisions import decide_once
from formers.attention.lsh.decoding import LSHCache, recall
from formers.attention.lsh.hashing import Hashed, check_buckets, drawn, factors, fitting, fixed_rotations, hashes, in_order, rotations
from formers.attention.lsh.kernel import RULES, attend
from formers.attention.lsh.reference import Rules, meet, meetings, term
from formers.attention.multihead import EVERYTHING, Attention, real
from formers.attention.request import Request
from formers.attention.shared_qk import SharedHeads, unit
from formers.core import Context, FormersError, KVCache, Range, Sizes, Watch
from formers.core.random import fresh_seed
from formers.core.state import expect
from formers.patterns import Pattern
from formers.score.base import ScoreModule

SHORT = 384
"""Up to so many tokens the fused kernel over all pairs is faster than tiles."""
TILES = "tokens sorted by bucket, chunks of them in tiles"
DECODES = "the keys of a token's own buckets"


class LSH(Attention):
    """A query looks at the keys that hashing puts into its bucket, in one of some rounds; keys are queries of length 1.

    `buckets` are two for each chunk of a row of the training length unless given, as a number or as factors. Rotations are drawn anew in
    each step of a training, and are fixed in evaluation, which may have more rounds.
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
    """What is added to the mean square of a query before it is made a key of length 1: 1e-6 in trax and transformers."""

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
                "across_buckets=True shows keys of other buckets that stand in a query's chunks, and reach='bucket' has no chunks: "
                "use reach='chunk', or across_buckets=False."
            )
        return self

    @property
    def draws(self) -> bool:
        return True

    def factors(self, length: int) -> tuple[int, ...]:
        """The buckets of a model for rows of a length, by factor."""
        if isinstance(self.buckets, tuple):
            return self.buckets
        return factors(self.buckets or fitting(length, self.chunk))

    def rules(self, causal: bool) -> Rules:
        """How far a query looks."""
        return Rules(causal, **{name: value for name, value in self if name in Rules._fields})

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return LSHAttention(sizes, pattern, self)


class ByLayer(Attention):
    """One attention for each layer in turn, as Reformers with local and LSH layers have them; of one part it is that part."""

    parts: tuple[Attention, ...]

    def __init__(self, *parts: Any, **fields: Any) -> None:
        if parts and "parts" not in fields:
            fields["parts"] = parts[0] if len(parts) == 1 and isinstance(parts[0], (tuple, list)) else parts
        super().__init__(**fields)

    @field_validator("parts")
    @classmethod
    def _some(cls, parts: tuple[Attention, ...]) -> tuple[Attention, ...]:
        if not parts or any(len(part.kinds) > 1 for part in parts):
            raise FormersError("ByLayer takes attentions that layers have in turn, at least one, each for itself: give it such.")
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
        return min((room for kind in self.kinds if (room := kind.max_length(length)) is not None), default=None)

    def key_count(self, sizes: Sizes, tokens: int) -> int | None:
        return self.kinds[0].key_count(sizes, tokens) if len(self.kinds) == 1 else None


def with_rounds(attention: Attention, rounds: int) -> Attention:
    """The same attention with so many hashing rounds in evaluation; unchanged without hashing."""
    if isinstance(attention, ByLayer):
        return ByLayer(*(with_rounds(part, rounds) for part in attention.parts))
    return attention.replace(evaluation_rounds=rounds) if isinstance(attention, LSH) else attention


class LSHAttention(SharedHeads):
    """Attention of a stream over the keys that it meets by hashing."""

    def __init__(self, sizes: Sizes, pattern: Pattern, part: LSH) -> None:
        super().__init__(sizes, part.scaled, part.bias)
        self.part = part
        self.factors = part.factors(sizes.length)
        self.rules = [part.rules(pattern.at(step).is_causal) for step in range(sizes.depth_steps)]
        self.numbers = [RULES.number(rules) for rules in self.rules]

    def forward(self, x: Tensor, context: Context, past: LSHCache | None, step: int) -> tuple[Tensor, LSHCache | None]:
        """y (batch, length, dim) for x (batch, length, dim) at a depth step, and what the stream's continuation needs."""
        q, v = self.split_all(self.qv(x), 2)
        rules, drawn_by = self.rules[step], self.draw(context, step)
        if past is not None:
            self.check(past)
            buckets = decide_once(context, "buckets", step, lambda: self.hash(q, drawn_by, context))
            held = past.append(self.keys(q), v, buckets, context.positions)
            y, read = recall(q, held, rules, self.scale)
            if context.watch is not None:
                context.watch.note("attention executors", step, lambda: (Verdict("bucketed", True, DECODES, None),))
                context.watch.note("keys read", step, lambda: read)
            return self.merge(y), held.detach() if context.keep else None
        hashed = decide_once(context, "buckets", step, lambda: in_order(self.hash(q, drawn_by, context)))
        if context.watch is not None:
            self.tell(context.watch, q, hashed, context, step)
        if rules.across_buckets and rules.wrap == "rounds" and not rules.duplicates:
            y = self.plainly(q, v, hashed, context, step)
        elif q.shape[2] <= SHORT and rules.reach == "bucket":
            y = self.masked(q, v, hashed, context, rules)
        else:
            y = attend(q, v, hashed, self.numbers[step], self.scale, context.valid, self.dropout if self.training else 0.0)
        if not context.keep:
            return self.merge(y), None
        where = real(context.positions, context.valid)
        marks = KVCache(hashed.buckets.transpose(2, 3), v.detach()[..., :0], where)
        return self.merge(y), LSHCache.of(KVCache(self.keys(q), v, where).detach(), marks, math.prod(self.factors), hashed.order)

    def keys(self, q: Tensor) -> Tensor:
        """The keys of queries."""
        return unit(q, self.part.key_epsilon)

    def tell(self, watch: Watch, q: Tensor, hashed: Hashed, context: Context, step: int) -> None:
        """Shows the buckets, the weights, by the explicit path, and what runs, to whoever looks on."""
        watch.note("buckets", step, lambda: hashed.buckets)
        watch.note(self.name, step, lambda: dense.weights(q, self.keys(q), self.plain_request(q, hashed, context, step)))
        watch.note(f"{self.name} executor", step, lambda: f"hashed ({TILES})")
        watch.note(f"{self.name} executors", step, lambda: (Verdict("hashed", True, TILES, None),))

    def check(self, past: LSHCache) -> None:
        """Refuses what a layer with other buckets or rounds has left behind."""
        rounds, buckets = expect(LSHCache, past).starts.shape[2], past.starts.shape[3] - 2
        own = self.rounds, math.prod(self.factors)
        if (rounds, buckets) != own:
            raise FormersError(
                f"the state was hashed in {rounds} rounds into {buckets} buckets, and this model has {own[0]} rounds and {own[1]} buckets: "
                "it is of another; use initial_state."
            )

    @property
    def rounds(self) -> int:
        """The hashing rounds of a pass."""
        return self.part.rounds if self.training else self.part.evaluation_rounds or self.part.rounds

    def draw(self, context: Context, step: int) -> tuple[int, ...]:
        """The keys of a pass's rotations: fixed in evaluation, of the training step where it is given, else drawn from torch's generator.

        A second pass over the same tokens draws, too, although it hashes nothing: so it leaves the generator as the first pass did, and
        dropout draws the same numbers behind it.
        """
        seed = self.part.seed
        if not self.training or context.keep:  # what goes on must be hashed as it was
            return (seed, step)
        if context.update is not None:
            return (seed, step, context.update)
        return (step,) if torch.compiler.is_compiling() else (fresh_seed(), step)

    def hash(self, q: Tensor, keys: tuple[int, ...], context: Context) -> Tensor:
        """The buckets (batch, heads, rounds, length) of queries by rotations of these keys; padding has one beyond all others."""
        _, heads, _, width = q.shape
        columns = sum(self.factors) // 2
        if torch.compiler.is_compiling():
            directions = drawn(heads, width, self.rounds, columns, list(keys))
        else:
            make = rotations if self.training and not context.keep else fixed_rotations
            directions = make(heads, width, self.rounds, columns, *keys)
        buckets = hashes(q, directions, self.factors)
        if context.valid is not None:
            buckets.masked_fill_(~context.valid[:, None, None, :], math.prod(self.factors))
        return buckets

    def masked(self, q: Tensor, v: Tensor, hashed: Hashed, context: Context, rules: Rules) -> Tensor:
        """Attention over all pairs by the fused kernel, of which those that do not meet are shut: the fastest for short rows."""
        met = meet(hashed.buckets, rules, context.valid)
        if rules.duplicates:
            times = meetings(hashed, rules, context.valid).clamp(min=1).to(q.dtype)
            met = times.log().masked_fill(~met, float("-inf"))
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, self.keys(q), v, attn_mask=met, dropout_p=dropout, scale=self.scale)

    def plainly(self, q: Tensor, v: Tensor, hashed: Hashed, context: Context, step: int) -> Tensor:
        """Attention by the full matrix of weights: the equation."""
        return dense.run(q, self.keys(q), v, self.plain_request(q, hashed, context, step))  # E94

    def plain_request(self, q: Tensor, hashed: Hashed, context: Context, step: int) -> Request:
        """What is asked of dense attention: all pairs, with a term that shuts those that do not meet."""
        n = q.shape[2]
        return self.request(EVERYTHING, Range(0, n), Range(0, n), None, term(hashed, self.rules[step], context.valid, q.dtype))
