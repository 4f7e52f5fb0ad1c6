"""LSH attention in tiles: tokens sorted by bucket, chunks of queries against the keys that they may meet; memory is linear.

o = sum_r exp(l_r - l) o_r        l = log sum_r exp(l_r)        over the rounds r, as pieces are merged in E23

A pair that meets in several rounds counts in the first alone: that is the softmax over the union, which the paper reaches by taking the
logarithm of the number of meetings off each of their scores. What is read from the device chooses tiles by how full the buckets are. The
backward pass computes weights again as exp(score - l), and keeps nothing but l and the output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.blocked import LARGE_TILE, merge
from formers.attention.hashing import Hashed
from formers.attention.lanes import Lane, Test, lanes, sort_out
from formers.attention.meetings import Rules
from formers.attention.numbered import Numbered
from formers.attention.tiles import EMPTY, LOG2E, SHUT, wide
from formers.core.random import fresh, generator
from formers.core.tables import kept

RULES: Numbered[Rules] = Numbered()
PAIRS = 1 << 16
"""Pairs of a tile on a CPU, for each of its threads."""
SMALL = 60.0
"""Scores between this and its opposite, as logarithms to base 2, have powers whose sums and products stay in range."""
TINY = 1e-37
"""Stands for a sum of nothing."""


def attend(q: Tensor, k: Tensor, v: Tensor, hashed: Hashed, rules: Rules, scale: float, real: Tensor | None, dropout: float) -> Tensor:
    """Attention (batch, heads, n, value_dim) over the keys that queries meet; real (batch, n) says which are tokens."""
    seed = fresh() if dropout else 0
    out: Tensor = operation(q, k, v, hashed.buckets, hashed.order, real, RULES.number(rules), scale, dropout, seed)[0]
    return out


class Work(NamedTuple):
    """What both directions share."""

    rules: Rules
    dtype: torch.dtype
    """What is computed in: half precision is widened, a row of a head at a time."""
    limit: int
    """Pairs of a tile."""
    scale: float
    dropout: float
    seed: int

    def kept(self, s: Tensor, *tile: int) -> Tensor:
        """1/(1 - dropout) for the weights s of a tile that are kept, 0 for the others: the same in both directions."""
        keyed = generator(self.seed, *tile, device=s.device)
        return torch.empty_like(s).bernoulli_(1.0 - self.dropout, generator=keyed).mul_(1.0 / (1.0 - self.dropout))


class Row(NamedTuple):
    """A head of a row."""

    q: Tensor
    """(n, head_dim), times the scale: scores are logarithms to base 2."""
    k: Tensor
    v: Tensor
    small: bool
    """Whether no score is so large or so little that its power of 2 leaves the numbers there are: then no largest one is looked for."""
    number: int


class Back(NamedTuple):
    """What the backward pass of a row is given, and where its gradients go."""

    g: Tensor
    """The gradient (n, value_dim) of the output; where scores are small, over the query's sum."""
    d: Tensor
    """(n, 1), the products of g and the output."""
    lse: Tensor
    """(n, 1), the logarithms of the sums; 0 where scores are small."""
    dq: Tensor
    dk: Tensor
    dv: Tensor


class Tile(NamedTuple):
    """A few chunks of queries, and a part of the keys that they look at."""

    start: int
    chunks: int
    first: int
    """The first chunk of keys, counted from the queries' own."""
    width: int
    """Chunks of keys."""
    merges: bool
    """Whether another part of the keys of these queries came before."""
    number: int


class Room:
    """Room for what tiles and lanes compute, which they use one after the other."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Room of a shape, in which anything may stand."""
        size = math.prod(shape)
        held = self.held.get(name)
        if held is None or held.numel() < size:
            held = self.held[name] = self.like.new_empty(size, dtype=self.dtype)
        return held[:size].view(shape)

    def rows(self, name: str, x: Tensor, which: Tensor) -> Tensor:
        """The rows of x (n, width) that are named."""
        return torch.index_select(x, 0, which, out=self.take(name, len(which), x.shape[1]))

    def zeros(self, name: str, like: Tensor) -> Tensor:
        """Zeros of the shape of another tensor."""
        return self.take(name, *like.shape).zero_()


def forward(
    q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, rules: int, scale: float, dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (batch, heads, n, value_dim), and the logarithms to base 2 of the sums (batch, heads, n)."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_out(buckets, order, work.rules)
    out, lse = torch.zeros_like(v, memory_format=torch.contiguous_format), q.new_full((batch, heads, n), EMPTY, dtype=work.dtype)
    room, places = Room(q, work.dtype), found.place.long()
    with torch.autocast(q.device.type, enabled=False):
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, k, v, index, count, work, index[0] * heads + index[1])
            y, sums = row.v.new_zeros(count, v.shape[3]), row.v.new_full((count, 1), EMPTY)
            for r, lane in enumerate(lanes(found, work.rules, *index, count, work.dtype)):
                part, part_sums = (x.index_select(0, places[(*index, r)][:count]) for x in _forward(row, lane, work, room, r))
                y, sums = merge(y, sums, part, part_sums, torch.ones_like(part_sums)) if r else (part, part_sums)
            if work.rules.itself == "alone":  # who has met nobody looks at itself
                y = torch.where(sums <= 0.5 * EMPTY, row.v, y)
            out[index][:count], lse[index][:count] = y, sums[:, 0]
    return out, lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, out: Tensor, lse: Tensor, rules: int,
    scale: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, for g of the output."""
    work, (batch, heads, n, _) = _work(q, rules, scale, dropout, seed), q.shape
    found = sort_out(buckets, order, work.rules)
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    room, places = Room(q, work.dtype), found.place.long()
    with torch.autocast(q.device.type, enabled=False):
        for index, count in _rows(real, batch, heads, n):
            row = _row(q, k, v, index, count, work, index[0] * heads + index[1])
            gradient, sums = g[index][:count].to(work.dtype), lse[index][:count, None]
            alone = sums <= 0.5 * EMPTY
            grads = [torch.zeros_like(x) for x in (row.q, row.k, row.v)]
            if work.rules.itself == "alone":
                grads[2] += torch.where(alone, gradient, 0.0)
            gradient = torch.where(alone, 0.0, gradient)
            if row.small:  # the sum that weights are over goes into the gradient, which is smaller than they are
                gradient, sums = gradient * torch.where(alone, 0.0, sums).neg_().exp2_(), torch.zeros_like(sums)
            back = Back(gradient, (gradient * out[index][:count]).sum(dim=-1, keepdim=True), sums, *grads)
            for r, lane in enumerate(lanes(found, work.rules, *index, count, work.dtype)):
                _backward(row, back, lane, work, room, r, places[(*index, r)][:count])
            for whole, part in zip((dq, dk, dv), grads, strict=True):
                whole[index][:count] = part
    return dq, dk, dv


def _work(q: Tensor, rules: int, scale: float, dropout: float, seed: int) -> Work:
    # What is dropped is drawn tile by tile: it must not depend on the threads, which may change between the two directions.
    limit = (PAIRS if dropout else PAIRS * torch.get_num_threads()) if q.device.type == "cpu" else LARGE_TILE
    return Work(RULES[rules], wide(q.dtype), limit, scale, dropout, seed)


def _rows(real: Tensor | None, batch: int, heads: int, n: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Every row and head, and how many tokens of the row are real, which come first."""
    counts = [n] * batch if real is None else real.sum(dim=1).tolist()
    return ((index, counts[index[0]]) for index in itertools.product(range(batch), range(heads)) if counts[index[0]])


def _row(q: Tensor, k: Tensor, v: Tensor, index: tuple[int, int], count: int, work: Work, number: int) -> Row:
    q, k, v = (x[index][:count].to(work.dtype) for x in (q, k, v))
    q = q * (work.scale * LOG2E)
    most = q.norm(dim=-1).max() * k.norm(dim=-1).max()
    return Row(q, k, v.contiguous(), bool(most <= SMALL), number)


def _tiles(lane: Lane, work: Work) -> Iterator[Tile]:
    """The tiles of a lane."""
    m, number = work.rules.chunk, 0
    for run in lane.runs:
        for part, (first, width) in enumerate(run.parts):
            each = max(1, work.limit // (m * m * width))
            for start in range(0, run.chunks, each):
                yield Tile(run.start + start, min(each, run.chunks - start), first, width, part > 0, number)
                number += 1


@kept(64)
def _fixed(m: int, causal: bool, alone: bool, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """1 where keys of a chunk (m, m queries) are met by queries of the same, within buckets, else 0; None where all are."""
    with torch.inference_mode(False):
        key, query = torch.arange(m, device=device)[:, None], torch.arange(m, device=device)
        if causal:
            return (key < query if alone else key <= query).to(dtype)
        return (key != query).to(dtype) if alone else None


def _windows(x: Tensor, lane: Lane, tile: Tile, m: int) -> Tensor:
    """The keys (count, width * m, ...) of a tile, as a view of x (places, ...)."""
    start = (lane.before + tile.start + tile.first) * m
    if x.dim() == 1:
        return x.as_strided((tile.chunks, tile.width * m, 1), (m, 1, 1), x.storage_offset() + start)
    wide = x.stride(0)
    return x.as_strided((tile.chunks, tile.width * m, x.shape[1]), (m * wide, wide, 1), x.storage_offset() + start * wide)


def _chunks(x: Tensor, tile: Tile, m: int) -> Tensor:
    """The queries (count, m, width) of a tile, as a view of x (tokens, width); of x (tokens,) as (count, 1, m)."""
    part = x[tile.start * m : (tile.start + tile.chunks) * m]
    return part.view(tile.chunks, 1, m) if x.dim() == 1 else part.view(tile.chunks, m, x.shape[1])


def _passes(test: Test, lane: Lane, tile: Tile, m: int, out: Tensor, other: Tensor) -> Tensor:
    """1 where a pair passes a test, else 0: marks are whole numbers, so that differences tell it, which is faster than comparisons."""
    marks = _windows(test.marks, lane, tile, m)
    first, second = (None if x is None else _chunks(x, tile, m) for x in (test.first, test.second))
    if test.kind == "apart":
        assert first is not None
        return torch.sub(marks, first, out=out).abs_().clamp_(max=1.0)
    if test.kind == "between":
        if first is not None:
            torch.sub(marks, first, out=out)
        if second is not None:
            torch.sub(second, marks, out=out if first is None else other)
        if first is not None and second is not None:
            torch.minimum(out, other, out=out)
    else:
        assert first is not None
        assert second is not None
        torch.maximum(torch.sub(first, marks, out=out), torch.sub(marks, second, out=other), out=out)
    return out.clamp_(0.0, 1.0)


def _pairs(lane: Lane, tile: Tile, work: Work, room: Room) -> Tensor:
    """1 for the pairs of a tile (count, keys, queries) that count, else 0."""
    m, shape = work.rules.chunk, (tile.chunks, tile.width * work.rules.chunk, work.rules.chunk)
    counts, more, other = (room.take(name, *shape) for name in ("counts", "more", "other"))
    _passes(lane.tests[0], lane, tile, m, counts, other)
    if not work.rules.across_buckets and tile.first <= 0 < tile.first + tile.width:
        fixed = _fixed(m, work.rules.causal, work.rules.itself == "alone", work.dtype, counts.device)
        if fixed is not None:
            counts[:, -tile.first * m : (1 - tile.first) * m].mul_(fixed)
    for test in lane.tests[1:]:
        counts.mul_(_passes(test, lane, tile, m, more, other))
    return counts


def _forward(row: Row, lane: Lane, work: Work, room: Room, r: int) -> tuple[Tensor, Tensor]:
    """The output (tokens, value_dim) of a lane in its order, and the logarithms of its sums (tokens, 1)."""
    m = work.rules.chunk
    q, k, v = room.rows("q", row.q, lane.queries), room.rows("k", row.k, lane.keys), room.rows("v", row.v, lane.keys)
    out, lse = room.take("out", len(q), v.shape[1]), room.take("lse", len(q), 1)
    for tile in _tiles(lane, work):
        s, top = room.take("s", tile.chunks, tile.width * m, m), None
        torch.bmm(_windows(k, lane, tile, m), _chunks(q, tile, m).mT, out=s)
        counts = _pairs(lane, tile, work, room)
        if row.small:
            s.exp2_().mul_(counts)
        else:
            s.add_(counts.sub_(1.0), alpha=-SHUT)
            top = s.amax(dim=1, keepdim=True).clamp_(min=EMPTY)
            s.sub_(top).exp2_()
        total = s.sum(dim=1, keepdim=True)
        if work.dropout:
            s.mul_(work.kept(s, row.number, r, tile.number))
        y, sums = _chunks(out, tile, m), _chunks(lse, tile, m)
        top = torch.zeros_like(total) if top is None else top
        top.masked_fill_(total == 0.0, EMPTY)
        total.clamp_(min=TINY)
        if tile.merges:
            both = merge(y, sums, torch.bmm(s.mT, _windows(v, lane, tile, m)), top.mT, total.mT)
            y.copy_(both[0])
            sums.copy_(both[1])
        else:
            torch.bmm(s.mT, _windows(v, lane, tile, m), out=y)
            y.div_(total.mT)
            torch.add(total.log2_(), top, out=sums.mT)
    return out, lse


def _backward(row: Row, back: Back, lane: Lane, work: Work, room: Room, r: int, places: Tensor) -> None:
    """Adds the gradients of a lane to those of its row; `places` are those of the row's tokens in the lane."""
    m = work.rules.chunk
    q, k, v = room.rows("q", row.q, lane.queries), room.rows("k", row.k, lane.keys), room.rows("v", row.v, lane.keys)
    g, d, lse = (room.rows(name, x, lane.queries) for name, x in (("g", back.g), ("d", back.d), ("lse", back.lse)))
    dq, dk, dv = room.zeros("dq", q), room.zeros("dk", k), room.zeros("dv", v)
    for tile in _tiles(lane, work):
        s, dp = (room.take(name, tile.chunks, tile.width * m, m) for name in ("s", "dp"))
        qt, gt, kt, vt = _chunks(q, tile, m), _chunks(g, tile, m), _windows(k, lane, tile, m), _windows(v, lane, tile, m)
        torch.bmm(kt, qt.mT, out=s)
        if not row.small:
            s.sub_(_chunks(lse, tile, m).mT)
            s.clamp_(max=0.0)  # of pairs that do not count it may be anything
        s.exp2_().mul_(_pairs(lane, tile, work, room))
        torch.bmm(vt, gt.mT, out=dp)
        if work.dropout:
            keep = work.kept(s, row.number, r, tile.number)
            dp.mul_(keep)
            _add(dv, keep.mul_(s), gt, lane, tile, m)
        else:
            _add(dv, s, gt, lane, tile, m)
        dp.sub_(_chunks(d, tile, m).mT).mul_(s)
        _add(dk, dp, qt, lane, tile, m)
        _chunks(dq, tile, m).baddbmm_(dp.mT, kt)
    own = slice(lane.before * m, lane.before * m + len(lane.queries))
    back.dq.add_(dq.index_select(0, places), alpha=work.scale)
    back.dk.add_(dk[own].index_select(0, places), alpha=1.0 / LOG2E)
    back.dv.add_(dv[own].index_select(0, places))
    if work.rules.across_buckets:  # the chunks before and behind are others, too
        for beside in (slice(0, own.start), slice(own.stop, len(lane.keys))):
            back.dk.index_add_(0, lane.keys[beside], dk[beside], alpha=1.0 / LOG2E)
            back.dv.index_add_(0, lane.keys[beside], dv[beside])


def _add(x: Tensor, a: Tensor, b: Tensor, lane: Lane, tile: Tile, m: int) -> None:
    """Adds a b (count, width * m, d) to the keys of a tile in x (places, d), chunk by chunk, since those of neighbours overlap."""
    start = lane.before + tile.start + tile.first
    for w in range(tile.width):
        part = x[(start + w) * m : (start + w + tile.chunks) * m]
        part.view(tile.chunks, m, -1).baddbmm_(a[:, w * m : (w + 1) * m], b)


# As operations of torch they are one thing to whoever looks on from outside.
NAMES = "int rules, float scale, float dropout, int seed"
GIVEN = "Tensor q, Tensor k, Tensor v, Tensor buckets, Tensor order, Tensor? real"
operation = torch.library.custom_op("formers::hashed", forward, mutates_args=(), schema=f"({GIVEN}, {NAMES}) -> (Tensor, Tensor)")
operation_backward = torch.library.custom_op(
    "formers::hashed_backward", backward, mutates_args=(),
    schema=f"(Tensor g, {GIVEN}, Tensor out, Tensor lse, {NAMES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _go_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *operation_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 7


operation.register_autograd(_go_back, setup_context=_keep)


def flops(shapes: tuple[tuple[int, ...], ...], rounds: int, rules: int, products: tuple[int, int]) -> int:
    """FLOPs over the pairs of tiles, so many products as wide as q, and as wide as v; as if buckets were all equally full."""
    (batch, heads, n, width), value, rule = shapes[0], shapes[1][3], RULES[rules]
    back, ahead = (1, 0 if rule.causal else 1) if rule.reach == "bucket" else (rule.look_back, rule.look_ahead)
    chunks = -(-n // rule.chunk)
    pairs = rounds * chunks * rule.chunk**2 * min(chunks, 1 + back + ahead)
    return 2 * batch * heads * pairs * (products[0] * width + products[1] * value)
