"""LSH attention in tiles: tokens sorted by bucket, chunks of queries with the chunks of keys that they may see; memory is linear.

o = sum_r exp(l_r - l) o_r        l = log sum_r exp(l_r)        over the rounds r, merged as pieces in E23

A pair that occurs in several rounds counts only in the first: this is the softmax over the union, which the paper computes by subtracting
the logarithm of the number of occurrences from the scores. The tile sizes depend on the bucket sizes, which are read from the device. The
backward pass recomputes weights as exp(score - l); only l and the output are saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.executors.blocked import merge
from formers.attention.executors.handles import HandleTable
from formers.attention.executors.scratch import ScratchBuffers
from formers.attention.executors.tiles import EMPTY, LOG2E, SHUT, wide
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.reference import Rules
from formers.attention.lsh.schedule import RoundSchedule, round_schedules, sort_by_bucket
from formers.attention.lsh.tiles import LSHWork, pairs, tiles_of
from formers.core.random import fresh_seeds

RULES: HandleTable[Rules] = HandleTable()
PAIRS = 1 << 18
"""Pairs per tile and thread on a CPU."""
SMALL = 60.0
"""Scores in [-SMALL, SMALL], as logarithms to base 2, have powers whose sums and products do not overflow."""
TINY = 1e-37
"""The smallest sum of exponentials; avoids a division by 0."""


def attend(q: Tensor, v: Tensor, hashed: Hashed, rules: int, scale: float, real: Tensor | None, dropout: float) -> Tensor:
    """Attention (batch, heads, n, value_dim) over the keys found by hashing, which are queries normalised to length 1 (E92).

    rules: their handle in RULES. real (batch, n) marks real tokens, which come first.
    """
    seed = fresh_seeds(1) if dropout else None
    out: Tensor = operation(q, v, hashed.buckets, hashed.order, real, seed, rules, scale, dropout)[0]
    return out


class LSHRow(NamedTuple):
    """One head of one row."""

    q: Tensor
    """(n, head_dim), times the scale; scores are logarithms to base 2."""
    over: Tensor
    """(n, 1): the reciprocal length of each query, slightly smaller with an epsilon; keys are queries times this."""
    v: Tensor
    small: bool
    """Whether all scores are at most SMALL in size, so that the softmax needs no maximum."""
    head: tuple[int, int]
    """The row and the head."""


class LSHGradients(NamedTuple):
    """The inputs of the backward pass of a row, and the tensors that its gradients are added to."""

    g: Tensor
    """The gradient (n, value_dim) of the output; with small scores, divided by the query's sum."""
    d: Tensor
    """(n, 1), the dot products of g and the output."""
    lse: Tensor
    """(n, 1), the log-sums."""
    dq: Tensor
    dk: Tensor
    dv: Tensor


def forward(
    q: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, seed: Tensor | None, rules: int, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """The output (batch, heads, n, value_dim), and the log-sums to base 2 (batch, heads, n)."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_by_bucket(buckets, order, work.rules)
    make = torch.empty_like if real is None else torch.zeros_like
    out, lse = make(v, memory_format=torch.contiguous_format), q.new_full((batch, heads, n), EMPTY, dtype=work.dtype)
    places = found.place.long()
    with torch.autocast(q.device.type, enabled=False), ScratchBuffers.of(q, work.dtype) as scratch:
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, v, index, count, work, scratch)
            y = sums = row.v
            for r, schedule in enumerate(round_schedules(found, work.rules, *index, count, work.dtype)):
                found_here = _forward(row, schedule, work, scratch, r)
                here = places[(*index, r)][:count]
                part, part_sums = (scratch.rows(f"{name} {r % 2}", x, here) for name, x in zip(("y", "sums"), found_here, strict=True))
                y, sums = merge(y, sums, part, part_sums, torch.ones_like(part_sums)) if r else (part, part_sums)
            if work.rules.itself == "alone":  # a query without keys attends to itself
                alone = (sums[:, 0] <= 0.5 * EMPTY).nonzero()[:, 0]
                y.index_copy_(0, alone, row.v.index_select(0, alone))
            out[index][:count], lse[index][:count] = y, sums[:, 0]
    return out, lse


def backward(
    g: Tensor, q: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor,
    rules: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of q and v, from the gradient g of the output."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_by_bucket(buckets, order, work.rules)
    make = torch.empty_like if real is None else torch.zeros_like
    dq, dv = (make(x, memory_format=torch.contiguous_format) for x in (q, v))
    places = found.place.long()
    with torch.autocast(q.device.type, enabled=False), ScratchBuffers.of(q, work.dtype) as scratch:
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, v, index, count, work, scratch)
            given, sums = g[index][:count].to(work.dtype), lse[index][:count, None]
            alone = sums <= 0.5 * EMPTY  # these attend to themselves, independently of their scores
            # With small scores the sums of the softmax are divided out of the gradient, which is smaller than the weights.
            factor = (sums.neg().exp2_() if row.small else torch.ones_like(sums)).masked_fill_(alone, 0.0)
            slope = scratch.product("slope", given, factor)
            along = scratch.product("square", slope, out[index][:count].to(work.dtype)).sum(dim=-1, keepdim=True)
            grads = [scratch.zeros(name, x) for name, x in (("row dq", row.q), ("row dk", row.q), ("row dv", row.v))]
            back = LSHGradients(slope, along, sums, *grads)
            for r, schedule in enumerate(round_schedules(found, work.rules, *index, count, work.dtype)):
                _backward(row, back, schedule, work, scratch, r, places[(*index, r)][:count])
            if work.rules.itself == "alone":
                which = alone[:, 0].nonzero()[:, 0]
                back.dv.index_add_(0, which, given.index_select(0, which))
            k = scratch.product("k", row.q, row.over)
            along = scratch.product("square", k, back.dk).sum(dim=-1, keepdim=True)
            back.dk.addcmul_(k, along, value=-1.0)  # a key depends only on the direction of its query
            dq[index][:count] = back.dq.addcmul_(back.dk, row.over).mul_(scale)
            dv[index][:count] = back.dv
    return dq, dv


def _work(q: Tensor, rules: int, scale: float, dropout: float, seed: Tensor | None) -> LSHWork:
    # Dropout masks are drawn per tile: tiles must not depend on the number of threads, which may change between the two passes.
    limit = PAIRS if dropout else PAIRS * torch.get_num_threads()
    return LSHWork(RULES[rules], wide(q.dtype), limit, scale, dropout, 0 if seed is None else int(seed))


def _rows(real: Tensor | None, batch: int, heads: int, n: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Every row and head, and the number of real tokens of the row, which come first."""
    counts = [n] * batch if real is None else real.sum(dim=1).tolist()
    return ((index, counts[index[0]]) for index in itertools.product(range(batch), range(heads)) if counts[index[0]])


def _row(q: Tensor, v: Tensor, index: tuple[int, int], count: int, work: LSHWork, scratch: ScratchBuffers) -> LSHRow:
    q, v = (x[index][:count].to(work.dtype) for x in (q, v))
    q = scratch.product("row", q, work.scale * LOG2E)
    squares = scratch.product("square", q, q).sum(dim=-1, keepdim=True)
    more = work.rules.key_epsilon * q.shape[1] * (work.scale * LOG2E) ** 2  # q is already multiplied by the scale
    return LSHRow(q, (squares + more).clamp_(min=TINY).rsqrt_(), v, bool(squares.max().sqrt_() <= SMALL), index)


class Order(NamedTuple):
    """The vectors of a row in the order of a schedule."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def of(cls, row: LSHRow, schedule: RoundSchedule, scratch: ScratchBuffers, m: int) -> Order:
        """The queries, keys and values of a schedule; queries are a slice of the keys before normalisation."""
        both = scratch.rows("q", row.q, schedule.keys)
        k = torch.mul(both, scratch.rows("over", row.over, schedule.keys), out=scratch.take("k", *both.shape))
        return cls(both[schedule.before * m :][: len(schedule.queries)], k, scratch.rows("v", row.v, schedule.keys))


def _forward(row: LSHRow, schedule: RoundSchedule, work: LSHWork, scratch: ScratchBuffers, r: int) -> tuple[Tensor, Tensor]:
    """The output (tokens, value_dim) of a schedule in its order, and its log-sums (tokens, 1)."""
    q, k, v = Order.of(row, schedule, scratch, work.rules.chunk)
    out, lse = scratch.take("out", len(q), v.shape[1]), scratch.take("lse", len(q), 1)
    for tile in tiles_of(schedule, work, (q, out, lse), (k, v)):
        (queries, y, sums), (keys, values) = tile.queries, tile.keys
        s = torch.bmm(keys, queries.mT, out=scratch.take("s", len(keys), keys.shape[1], queries.shape[1]))
        counts = pairs(tile, s, scratch)
        if row.small:
            total = s.exp2_().mul_(counts).sum(dim=1, keepdim=True)
        else:
            s.add_(counts.sub_(1.0), alpha=-SHUT)
            top = s.amax(dim=1, keepdim=True).clamp_(min=EMPTY)
            total = s.sub_(top).exp2_().sum(dim=1, keepdim=True)
        if work.dropout:
            s.mul_(work.dropout_mask(s, *row.head, r, tile.number))
        if row.small:  # normalised after all tiles
            if tile.merges:
                y.baddbmm_(s.mT, values)
                sums.add_(total.mT)
            else:
                torch.bmm(s.mT, values, out=y)
                sums.copy_(total.mT)
            continue
        mixed, total = torch.bmm(s.mT, values), total.clamp_(min=TINY)
        if tile.merges:
            mixed, logs = merge(y, sums, mixed, top.mT, total.mT)
        else:
            mixed, logs = mixed.div_(total.mT), total.log2_().add_(top).mT
        y.copy_(mixed)
        sums.copy_(logs)
    if row.small:
        out.div_(lse.clamp(min=TINY))
        lse.log2_().clamp_(min=EMPTY)
    return out, lse


def _backward(
    row: LSHRow, back: LSHGradients, schedule: RoundSchedule, work: LSHWork, scratch: ScratchBuffers, r: int, places: Tensor
) -> None:
    """Adds the gradients of a schedule to those of its row; `places` are the indices of the row's tokens in the schedule."""
    m = work.rules.chunk
    q, k, v = Order.of(row, schedule, scratch, m)
    g, d, lse = (
        scratch.rows("g", back.g, schedule.queries),
        scratch.rows("d", back.d, schedule.queries),
        scratch.rows("lse", back.lse, schedule.queries),
    )
    dq, dk, dv = scratch.zeros("dq", q), scratch.zeros("dk", k), scratch.zeros("dv", v)
    for tile in tiles_of(schedule, work, (q, g, d, lse, dq), (k, v), (dk, dv)):
        (queries, slopes, along, sums, queries_slope), (keys, values) = tile.queries, tile.keys
        shape = (len(keys), keys.shape[1], queries.shape[1])
        s, dp = scratch.take("s", *shape), scratch.take("dp", *shape)
        torch.bmm(keys, queries.mT, out=s)
        if not row.small:
            s.sub_(sums.mT).clamp_(max=0.0)  # arbitrary for pairs that do not count
        s.exp2_().mul_(pairs(tile, s, scratch))
        torch.bmm(values, slopes.mT, out=dp)
        weights = s
        if work.dropout:
            weights = work.dropout_mask(s, *row.head, r, tile.number)
            dp.mul_(weights)
            weights.mul_(s)
        dp.sub_(along.mT).mul_(s)
        for w, (key_slope, value_slope) in enumerate(zip(*tile.summed, strict=True)):
            those = slice(w * m, (w + 1) * m)
            key_slope.baddbmm_(dp[:, those], queries)
            value_slope.baddbmm_(weights[:, those], slopes)
        queries_slope.baddbmm_(dp.mT, keys)
    own = slice(schedule.before * m, schedule.before * m + len(schedule.queries))
    for whole, part in ((back.dq, dq), (back.dk, dk[own]), (back.dv, dv[own])):
        whole.add_(scratch.rows("in order", part, places))
    if work.rules.across_buckets:  # neighbouring chunks may be of other tokens
        for beside in (slice(0, own.start), slice(own.stop, len(schedule.keys))):
            back.dk.index_add_(0, schedule.keys[beside], dk[beside])
            back.dv.index_add_(0, schedule.keys[beside], dv[beside])


# Custom operators, so that tools that count costs or profile see one operation.
NAMES = "int rules, float scale, float dropout"
GIVEN = "Tensor q, Tensor v, Tensor buckets, Tensor order, Tensor? real, Tensor? seed"
operation = torch.library.custom_op("formers::hashed", forward, mutates_args=(), schema=f"({GIVEN}, {NAMES}) -> (Tensor, Tensor)")
operation_backward = torch.library.custom_op(
    "formers::hashed_backward", backward, mutates_args=(),
    schema=f"(Tensor g, {GIVEN}, Tensor out, Tensor lse, {NAMES}) -> (Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(q: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(g: Tensor, q: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, v))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _autograd_backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *operation_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 7


operation.register_autograd(_autograd_backward, setup_context=_setup_context)


def flops(shapes: tuple[tuple[int, ...], ...], rounds: int, rules: int, products: tuple[int, int]) -> int:
    """FLOPs over the pairs of tiles, for a number of products of the width of q, and of v; assumes equal bucket sizes."""
    (batch, heads, n, width), value, rule = shapes[0], shapes[1][3], RULES[rules]
    back, ahead = (1, 0 if rule.causal else 1) if rule.reach == "bucket" else (rule.look_back, rule.look_ahead)
    chunks = -(-n // rule.chunk)
    count = rounds * chunks * rule.chunk**2 * min(chunks, 1 + back + ahead)
    return 2 * batch * heads * count * (products[0] * width + products[1] * value)
