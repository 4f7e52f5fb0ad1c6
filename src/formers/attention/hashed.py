"""LSH attention in tiles: tokens sorted by bucket, chunks of queries against the keys that they may meet; memory is linear.

o = sum_r exp(l_r - l) o_r        l = log sum_r exp(l_r)        over the rounds r, as pieces are merged in E23

A pair that meets in several rounds counts in the first alone: that is the softmax over the union, which the paper reaches by taking the
logarithm of the number of meetings off each of their scores. What is read from the device chooses tiles by how full the buckets are. The
backward pass computes weights again as exp(score - l), and keeps nothing but l and the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.blocked import LARGE_TILE, merge
from formers.attention.hashing import Hashed
from formers.attention.lanes import Lane, Test, lanes, sort_out
from formers.attention.meetings import Rules
from formers.attention.numbered import Numbered
from formers.attention.tiles import EMPTY, LOG2E, SHUT, TILE, wide
from formers.core.random import fresh, generator
from formers.core.tables import kept

RULES: Numbered[Rules] = Numbered()


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


class Tile(NamedTuple):
    """A few chunks of queries, and a part of the keys that they look at."""

    start: int
    count: int
    first: int
    """The first chunk of keys, counted from the queries' own."""
    width: int
    """Chunks of keys."""
    merges: bool
    """Whether another part of the keys of these queries came before."""
    number: int


def forward(
    q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, rules: int, scale: float, dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (batch, heads, n, value_dim), and the logarithms to base 2 of the sums (batch, heads, n)."""
    work = _work(q, rules, scale, dropout, seed)
    (batch, heads, n, _), found = q.shape, sort_out(buckets, order, work.rules)
    out, lse = torch.zeros_like(v, memory_format=torch.contiguous_format), q.new_full((batch, heads, n), EMPTY, dtype=work.dtype)
    room = Room(q, work)
    with torch.autocast(q.device.type, enabled=False):
        for row, count in enumerate(_counts(real, batch, n)):
            for head in range(heads):
                rows = [x[row, head].to(work.dtype) for x in (q, k, v)]
                rows[0] = rows[0] * (scale * LOG2E)
                y, sums = rows[2].new_zeros(n, v.shape[3]), rows[2].new_full((n, 1), EMPTY)
                for r, lane in enumerate(lanes(found, work.rules, row, head, count)):
                    places = lane.queries[:count]
                    part, part_sums = _forward(rows, lane, work, room, (row * heads + head, r))
                    part, part_sums = part[:count], part_sums[:count]
                    if r:
                        one = torch.ones_like(part_sums)
                        part, part_sums = merge(y[places], sums[places], part, part_sums, one)
                    y[places], sums[places] = part, part_sums
                if work.rules.itself == "alone":  # who has met nobody looks at itself
                    alone = sums[:, 0] <= 0.5 * EMPTY
                    if real is not None:
                        alone &= real[row]
                    y = torch.where(alone[:, None], rows[2], y)
                out[row, head], lse[row, head] = y, sums[:, 0]
    return out, lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, order: Tensor, real: Tensor | None, out: Tensor, lse: Tensor, rules: int,
    scale: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, for g of the output."""
    work = _work(q, rules, scale, dropout, seed)
    (batch, heads, n, _), found = q.shape, sort_out(buckets, order, work.rules)
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    room = Room(q, work)
    with torch.autocast(q.device.type, enabled=False):
        for row, count in enumerate(_counts(real, batch, n)):
            for head in range(heads):
                rows = [x[row, head].to(work.dtype) for x in (q, k, v, g)]
                rows[0] = rows[0] * (scale * LOG2E)
                sums, delta = lse[row, head][:, None], (rows[3] * out[row, head]).sum(dim=-1, keepdim=True)
                grads = [torch.zeros_like(x) for x in rows[:3]]
                for r, lane in enumerate(lanes(found, work.rules, row, head, count)):
                    _backward([*rows, sums, delta], lane, work, room, (row * heads + head, r), grads)
                if work.rules.itself == "alone":
                    alone = sums[:, 0] <= 0.5 * EMPTY
                    if real is not None:
                        alone &= real[row]
                    grads[2] += torch.where(alone[:, None], rows[3], 0.0)
                dq[row, head], dk[row, head], dv[row, head] = grads[0], grads[1], grads[2]
    return dq, dk, dv


def _work(q: Tensor, rules: int, scale: float, dropout: float, seed: int) -> Work:
    # What is dropped is drawn tile by tile: it must not depend on the threads, which may change between the two directions.
    limit = (TILE if dropout else TILE * torch.get_num_threads()) if q.device.type == "cpu" else LARGE_TILE
    return Work(RULES[rules], wide(q.dtype), limit, scale, dropout, seed)


def _counts(real: Tensor | None, batch: int, n: int) -> list[int]:
    """How many tokens of each row are real."""
    return [n] * batch if real is None else real.sum(dim=1).tolist()


class Room:
    """Room for the scores of a tile and for what is shut, which tiles use one after the other."""

    def __init__(self, like: Tensor, work: Work) -> None:
        self.like, self.work = like, work
        self.size = 0
        self.scores: list[Tensor] = []
        self.flags: list[Tensor] = []

    def take(self, *shape: int) -> tuple[list[Tensor], list[Tensor]]:
        """Two tensors of scores and two of flags, of a shape."""
        size = shape[0] * shape[1] * shape[2]
        if size > self.size:
            self.size = size
            self.scores = [self.like.new_empty(size, dtype=self.work.dtype) for _ in range(2)]
            self.flags = [self.like.new_empty(size, dtype=torch.bool) for _ in range(2)]
        scores, flags = ([x[:size].view(shape) for x in kind] for kind in (self.scores, self.flags))
        return scores, flags


def _tiles(lane: Lane, work: Work) -> Iterator[Tile]:
    """The tiles of a lane."""
    m, number = work.rules.chunk, 0
    for run in lane.runs:
        for part, (first, width) in enumerate(run.parts):
            each = max(1, work.limit // (m * m * width))
            for start in range(0, run.count, each):
                yield Tile(run.start + start, min(each, run.count - start), first, width, part > 0, number)
                number += 1


@kept(64)
def _fixed(m: int, causal: bool, alone: bool, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """What is added to the scores (m keys, m queries) of a chunk with itself, within buckets: who stands behind a query is not met."""
    with torch.inference_mode(False):
        key, query = torch.arange(m, device=device)[:, None], torch.arange(m, device=device)
        if causal:
            met = key < query if alone else key <= query
        elif alone:
            met = key != query
        else:
            return None
        return met.to(dtype).sub_(1.0).mul_(-SHUT)


def _windows(x: Tensor, lane: Lane, tile: Tile, m: int) -> Tensor:
    """The keys (count, width * m, ...) of a tile, as a view of x (places, ...)."""
    start = (lane.before + tile.start + tile.first) * m
    if x.dim() == 1:
        return x.as_strided((tile.count, tile.width * m, 1), (m, 1, 1), x.storage_offset() + start)
    wide = x.stride(0)
    return x.as_strided((tile.count, tile.width * m, x.shape[1]), (m * wide, wide, 1), x.storage_offset() + start * wide)


def _chunks(x: Tensor, tile: Tile, m: int) -> Tensor:
    """The queries (count, m, width) of a tile, as a view of x (tokens, width); of x (tokens,) as (count, 1, m)."""
    part = x[tile.start * m : (tile.start + tile.count) * m]
    return part.view(tile.count, 1, m) if x.dim() == 1 else part.view(tile.count, m, x.shape[1])


def _passes(test: Test, lane: Lane, tile: Tile, m: int, flags: list[Tensor]) -> Tensor:
    """Whether pairs pass a test, in the first of two tensors of flags."""
    marks = _windows(test.marks, lane, tile, m)
    if test.same is not None:
        return torch.eq(marks, _chunks(test.same, tile, m), out=flags[0])
    if test.high is None:
        assert test.low is not None
        return torch.ge(marks, _chunks(test.low, tile, m), out=flags[0])
    torch.lt(marks, _chunks(test.high, tile, m), out=flags[0])
    if test.low is not None:
        torch.ge(marks, _chunks(test.low, tile, m), out=flags[1])
        flags[0].logical_and_(flags[1])
    return flags[0]


def _scores(q: Tensor, k: Tensor, lane: Lane, tile: Tile, work: Work, s: Tensor, flags: list[Tensor]) -> Tensor:
    """The scores (count, width * m keys, m queries) of a tile in s, SHUT where a pair does not count."""
    rules, m = work.rules, work.rules.chunk
    torch.bmm(k, q.mT, out=s)
    if not rules.across_buckets and tile.first <= 0 < tile.first + tile.width:
        term = _fixed(m, rules.causal, rules.itself == "alone", s.dtype, s.device)
        if term is not None:
            s[:, -tile.first * m : (1 - tile.first) * m].add_(term)
    s.masked_fill_(_passes(lane.met, lane, tile, m, flags).logical_not_(), SHUT)
    for test in lane.earlier if lane.itself is None else (lane.itself, *lane.earlier):
        s.masked_fill_(_passes(test, lane, tile, m, flags), SHUT)
    return s


def _forward(rows: list[Tensor], lane: Lane, work: Work, room: Room, which: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The output (tokens, value_dim) of a lane in its order, and the logarithms of its sums (tokens, 1)."""
    m = work.rules.chunk
    q, k, v = rows[0][lane.queries], rows[1][lane.keys], rows[2][lane.keys]
    out, lse = v.new_empty(len(q), v.shape[1]), v.new_empty(len(q), 1)
    for tile in _tiles(lane, work):
        (s, _), flags = room.take(tile.count, tile.width * m, m)
        _scores(_chunks(q, tile, m), _windows(k, lane, tile, m), lane, tile, work, s, flags)
        top = s.amax(dim=1, keepdim=True).clamp_(min=EMPTY)
        s.sub_(top).exp2_()
        total = s.sum(dim=1, keepdim=True).clamp_(min=1e-30)
        if work.dropout:
            s.mul_(work.kept(s, *which, tile.number))
        y, here, sums = torch.bmm(s.mT, _windows(v, lane, tile, m)), _chunks(out, tile, m), _chunks(lse, tile, m)
        if tile.merges:
            y, l = merge(here, sums, y, top.mT, total.mT)
            here.copy_(y)
            sums.copy_(l)
        else:
            torch.div(y, total.mT, out=here)
            torch.add(total.mT.log2_(), top.mT, out=sums)
    return out, lse


def _backward(rows: list[Tensor], lane: Lane, work: Work, room: Room, which: tuple[int, int], grads: list[Tensor]) -> None:
    """Adds the gradients of a lane to those of its row."""
    m = work.rules.chunk
    q, g, lse, delta = (rows[i][lane.queries] for i in (0, 3, 4, 5))
    k, v = rows[1][lane.keys], rows[2][lane.keys]
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for tile in _tiles(lane, work):
        (s, dp), flags = room.take(tile.count, tile.width * m, m)
        qt, gt, kt, vt = _chunks(q, tile, m), _chunks(g, tile, m), _windows(k, lane, tile, m), _windows(v, lane, tile, m)
        p = _scores(qt, kt, lane, tile, work, s, flags).sub_(_chunks(lse, tile, m).mT).exp2_()
        torch.bmm(vt, gt.mT, out=dp)
        if work.dropout:
            keep = work.kept(s, *which, tile.number)
            dp.mul_(keep)
            _add(dv, torch.bmm(keep.mul_(p), gt), lane, tile, m)
        else:
            _add(dv, torch.bmm(p, gt), lane, tile, m)
        dp.sub_(_chunks(delta, tile, m).mT).mul_(p)
        _add(dk, torch.bmm(dp, qt), lane, tile, m)
        _chunks(dq, tile, m).baddbmm_(dp.mT, kt)
    # Queries beyond the last token stand for the first, and see nobody; keys beyond it are seen by nobody: both add 0.
    grads[0].index_add_(0, lane.queries, dq, alpha=work.scale)
    grads[1].index_add_(0, lane.keys, dk, alpha=1.0 / LOG2E)
    grads[2].index_add_(0, lane.keys, dv)


def _add(x: Tensor, y: Tensor, lane: Lane, tile: Tile, m: int) -> None:
    """Adds y (count, width * m, d) to the keys of a tile in x (places, d), chunk by chunk, since those of neighbours overlap."""
    start = lane.before + tile.start + tile.first
    for w in range(tile.width):
        part = x[(start + w) * m : (start + w + tile.count) * m]
        part.view(tile.count, m, -1).add_(y[:, w * m : (w + 1) * m])


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
