"""LSH attention in tiles: tokens sorted by bucket, chunks of queries against the keys that they may meet; memory is linear.

o = sum_r exp(l_r - l) o_r        l = log sum_r exp(l_r)        over the rounds r, as pieces are merged in E23

A pair that meets in several rounds counts in the first alone: that is the softmax over the union, which the paper reaches by taking the
logarithm of the number of meetings off each of their scores. What is read from the device chooses tiles by how full the buckets are. The
backward pass computes weights again as exp(score - l), and keeps nothing but l and the output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.executors.blocked import LARGE_TILE, merge
from formers.attention.executors.handles import HandleTable
from formers.attention.executors.scratch import ScratchBuffers
from formers.attention.executors.tiles import EMPTY, LOG2E, SHUT, wide
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.reference import Rules
from formers.attention.lsh.schedule import Lane, lanes, sort_out
from formers.attention.lsh.tiles import LSHWork, pairs, tiles_of
from formers.core.random import fresh_seed

RULES: HandleTable[Rules] = HandleTable()
PAIRS = 1 << 18
"""Pairs of a tile on a CPU, for each of its threads."""
SMALL = 60.0
"""Scores between this and its opposite, as logarithms to base 2, have powers whose sums and products stay in range."""
TINY = 1e-37
"""Stands for a sum of nothing."""


def attend(q: Tensor, v: Tensor, hashed: Hashed, rules: int, scale: float, real: Tensor | None, dropout: float) -> Tensor:
    """Attention (batch, heads, n, value_dim) over the keys that queries meet, which are queries of length 1 (E92).

    rules: their number in RULES. real (batch, n) says which are tokens; they come first.
    """
    seed = fresh_seed() if dropout else 0
    out: Tensor = operation(q, v, hashed.buckets, hashed.order, real, rules, scale, dropout, seed)[0]
    return out


class LSHRow(NamedTuple):
    """A head of a row."""

    q: Tensor
    """(n, head_dim), times the scale: scores are logarithms to base 2."""
    over: Tensor
    """(n, 1): 1 over the length of each of these, and with an epsilon a little less; with it they are keys."""
    v: Tensor
    small: bool
    """Whether no score is so large or so little that its power of 2 leaves the numbers there are: then no largest one is looked for."""
    head: tuple[int, int]
    """The row, and which of its heads."""


class LSHGradients(NamedTuple):
    """What the backward pass of a row is given, and where its gradients go."""

    g: Tensor
    """The gradient (n, value_dim) of the output; where scores are small, over the query's sum."""
    d: Tensor
    """(n, 1), the products of g and the output."""
    lse: Tensor
    """(n, 1), the logarithms of the sums."""
    dq: Tensor
    dk: Tensor
    dv: Tensor


def forward(
    q: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, rules: int, scale: float, dropout: float, seed: int
) -> tuple[Tensor, Tensor]:
    """The output (batch, heads, n, value_dim), and the logarithms to base 2 of the sums (batch, heads, n)."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_out(buckets, order, work.rules)
    make = torch.empty_like if real is None else torch.zeros_like
    out, lse = make(v, memory_format=torch.contiguous_format), q.new_full((batch, heads, n), EMPTY, dtype=work.dtype)
    places = found.place.long()
    with torch.autocast(q.device.type, enabled=False), ScratchBuffers.of(q, work.dtype) as room:
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, v, index, count, work, room)
            y = sums = row.v
            for r, lane in enumerate(lanes(found, work.rules, *index, count, work.dtype)):
                found_here = _forward(row, lane, work, room, r)
                here = places[(*index, r)][:count]
                part, part_sums = (room.rows(f"{name} {r % 2}", x, here) for name, x in zip(("y", "sums"), found_here, strict=True))
                y, sums = merge(y, sums, part, part_sums, torch.ones_like(part_sums)) if r else (part, part_sums)
            if work.rules.itself == "alone":  # who has met nobody looks at itself
                alone = (sums[:, 0] <= 0.5 * EMPTY).nonzero()[:, 0]
                y.index_copy_(0, alone, row.v.index_select(0, alone))
            out[index][:count], lse[index][:count] = y, sums[:, 0]
    return out, lse


def backward(
    g: Tensor, q: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, out: Tensor, lse: Tensor, rules: int,
    scale: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of q and v, for g of the output."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_out(buckets, order, work.rules)
    make = torch.empty_like if real is None else torch.zeros_like
    dq, dv = (make(x, memory_format=torch.contiguous_format) for x in (q, v))
    places = found.place.long()
    with torch.autocast(q.device.type, enabled=False), ScratchBuffers.of(q, work.dtype) as room:
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, v, index, count, work, room)
            given, sums = g[index][:count].to(work.dtype), lse[index][:count, None]
            alone = sums <= 0.5 * EMPTY  # they look at themselves, if at anybody, whatever their scores are
            # Where scores are small the sums that weights are over go into the gradient, which is smaller than the weights are.
            factor = (sums.neg().exp2_() if row.small else torch.ones_like(sums)).masked_fill_(alone, 0.0)
            slope = room.product("slope", given, factor)
            along = room.product("square", slope, out[index][:count].to(work.dtype)).sum(dim=-1, keepdim=True)
            grads = [room.zeros(name, x) for name, x in (("row dq", row.q), ("row dk", row.q), ("row dv", row.v))]
            back = LSHGradients(slope, along, sums, *grads)
            for r, lane in enumerate(lanes(found, work.rules, *index, count, work.dtype)):
                _backward(row, back, lane, work, room, r, places[(*index, r)][:count])
            if work.rules.itself == "alone":
                which = alone[:, 0].nonzero()[:, 0]
                back.dv.index_add_(0, which, given.index_select(0, which))
            k = room.product("k", row.q, row.over)
            along = room.product("square", k, back.dk).sum(dim=-1, keepdim=True)
            back.dk.addcmul_(k, along, value=-1.0)  # a key changes with the direction of its query alone
            dq[index][:count] = back.dq.addcmul_(back.dk, row.over).mul_(scale)
            dv[index][:count] = back.dv
    return dq, dv


def _work(q: Tensor, rules: int, scale: float, dropout: float, seed: int) -> LSHWork:
    # What is dropped is drawn tile by tile: it must not depend on the threads, which may change between the two directions.
    limit = (PAIRS if dropout else PAIRS * torch.get_num_threads()) if q.device.type == "cpu" else LARGE_TILE
    return LSHWork(RULES[rules], wide(q.dtype), limit, scale, dropout, seed)


def _rows(real: Tensor | None, batch: int, heads: int, n: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Every row and head, and how many tokens of the row are real, which come first."""
    counts = [n] * batch if real is None else real.sum(dim=1).tolist()
    return ((index, counts[index[0]]) for index in itertools.product(range(batch), range(heads)) if counts[index[0]])


def _row(q: Tensor, v: Tensor, index: tuple[int, int], count: int, work: LSHWork, room: ScratchBuffers) -> LSHRow:
    q, v = (x[index][:count].to(work.dtype) for x in (q, v))
    q = room.product("row", q, work.scale * LOG2E)
    squares = room.product("square", q, q).sum(dim=-1, keepdim=True)
    more = work.rules.key_epsilon * q.shape[1] * (work.scale * LOG2E) ** 2  # of the queries as they are here, times the scale
    return LSHRow(q, (squares + more).clamp_(min=TINY).rsqrt_(), v, bool(squares.max().sqrt_() <= SMALL), index)


class Order(NamedTuple):
    """The vectors of a row in the order of a lane."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def of(cls, row: LSHRow, lane: Lane, room: ScratchBuffers, m: int) -> Order:
        """Those of a lane; queries stand among the keys, which are queries of length 1."""
        both = room.rows("q", row.q, lane.keys)
        k = torch.mul(both, room.rows("over", row.over, lane.keys), out=room.take("k", *both.shape))
        return cls(both[lane.before * m :][: len(lane.queries)], k, room.rows("v", row.v, lane.keys))


def _forward(row: LSHRow, lane: Lane, work: LSHWork, room: ScratchBuffers, r: int) -> tuple[Tensor, Tensor]:
    """The output (tokens, value_dim) of a lane in its order, and the logarithms of its sums (tokens, 1)."""
    q, k, v = Order.of(row, lane, room, work.rules.chunk)
    out, lse = room.take("out", len(q), v.shape[1]), room.take("lse", len(q), 1)
    for tile in tiles_of(lane, work, (q, out, lse), (k, v)):
        (queries, y, sums), (keys, values) = tile.queries, tile.keys
        s = torch.bmm(keys, queries.mT, out=room.take("s", len(keys), keys.shape[1], queries.shape[1]))
        counts = pairs(tile, s, room)
        if row.small:
            total = s.exp2_().mul_(counts).sum(dim=1, keepdim=True)
        else:
            s.add_(counts.sub_(1.0), alpha=-SHUT)
            top = s.amax(dim=1, keepdim=True).clamp_(min=EMPTY)
            total = s.sub_(top).exp2_().sum(dim=1, keepdim=True)
        if work.dropout:
            s.mul_(work.kept(s, *row.head, r, tile.number))
        if row.small:  # sums are divided by when all are there
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


def _backward(row: LSHRow, back: LSHGradients, lane: Lane, work: LSHWork, room: ScratchBuffers, r: int, places: Tensor) -> None:
    """Adds the gradients of a lane to those of its row; `places` are those of the row's tokens in the lane."""
    m = work.rules.chunk
    q, k, v = Order.of(row, lane, room, m)
    g, d, lse = room.rows("g", back.g, lane.queries), room.rows("d", back.d, lane.queries), room.rows("lse", back.lse, lane.queries)
    dq, dk, dv = room.zeros("dq", q), room.zeros("dk", k), room.zeros("dv", v)
    for tile in tiles_of(lane, work, (q, g, d, lse, dq), (k, v), (dk, dv)):
        (queries, slopes, along, sums, queries_slope), (keys, values) = tile.queries, tile.keys
        shape = (len(keys), keys.shape[1], queries.shape[1])
        s, dp = room.take("s", *shape), room.take("dp", *shape)
        torch.bmm(keys, queries.mT, out=s)
        if not row.small:
            s.sub_(sums.mT).clamp_(max=0.0)  # of pairs that do not count it may be anything
        s.exp2_().mul_(pairs(tile, s, room))
        torch.bmm(values, slopes.mT, out=dp)
        weights = s
        if work.dropout:
            weights = work.kept(s, *row.head, r, tile.number)
            dp.mul_(weights)
            weights.mul_(s)
        dp.sub_(along.mT).mul_(s)
        for w, (key_slope, value_slope) in enumerate(zip(*tile.summed, strict=True)):
            those = slice(w * m, (w + 1) * m)
            key_slope.baddbmm_(dp[:, those], queries)
            value_slope.baddbmm_(weights[:, those], slopes)
        queries_slope.baddbmm_(dp.mT, keys)
    own = slice(lane.before * m, lane.before * m + len(lane.queries))
    for whole, part in ((back.dq, dq), (back.dk, dk[own]), (back.dv, dv[own])):
        whole.add_(room.rows("in order", part, places))
    if work.rules.across_buckets:  # the chunks before and behind are others, too
        for beside in (slice(0, own.start), slice(own.stop, len(lane.keys))):
            back.dk.index_add_(0, lane.keys[beside], dk[beside])
            back.dv.index_add_(0, lane.keys[beside], dv[beside])


# As operations of torch they are one thing to whoever looks on from outside.
NAMES = "int rules, float scale, float dropout, int seed"
GIVEN = "Tensor q, Tensor v, Tensor buckets, Tensor order, Tensor? real"
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.rest = inputs[5:]


def _go_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *operation_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 7


operation.register_autograd(_go_back, setup_context=_keep)


def flops(shapes: tuple[tuple[int, ...], ...], rounds: int, rules: int, products: tuple[int, int]) -> int:
    """FLOPs over the pairs of tiles, so many products as wide as q, and as wide as v; as if buckets were all equally full."""
    (batch, heads, n, width), value, rule = shapes[0], shapes[1][3], RULES[rules]
    back, ahead = (1, 0 if rule.causal else 1) if rule.reach == "bucket" else (rule.look_back, rule.look_ahead)
    chunks = -(-n // rule.chunk)
    count = rounds * chunks * rule.chunk**2 * min(chunks, 1 + back + ahead)
    return 2 * batch * heads * count * (products[0] * width + products[1] * value)
