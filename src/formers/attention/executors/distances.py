"""Attention with a term by distance, in tiles: relative scores and learned spans without a matrix of all pairs in either direction.

s_ij = scale q_i . k_j + b_ij        b_ij = p_{i, i-j}        p_{i, x} = q'_i . t_x + l_x        E24

For a few queries at a time p is a product with a slice of the table, whose rows go from the furthest distance to the nearest. Each row of
p is then shifted against the one above it by one place: read with a row one element shorter than it is, p *is* b. So the shift of
Transformer-XL costs nothing, keys that a head's span has shut are never computed, and the backward pass computes tiles again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.bands import BandTile, cut, joined
from formers.attention.executors.tiles import EMPTY, LOG2E, SHUT, TILE, wide
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Causal, Local, Pattern
from formers.score import ByDistance

CONTIGUOUS = torch.contiguous_format
KEPT = 1 << 22
"""So many weights, at the most, are kept for the backward pass, which then need not compute them again."""
FEWEST = 16
"""Below so many queries the whole term is as fast."""


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be tiled by distance; None if it can."""
    if request.first is not None:
        return "rows hold several episodes, of which a query sees its own"
    if not isinstance(request.bias, ByDistance):
        return "no term by distance is added to the scores"
    if not (isinstance(request.queries, Range) and isinstance(request.keys, Range)):
        return "tokens do not stand side by side, or elsewhere in each row"
    if _band(request.pattern) is None:
        return "the pattern is not the last keys of a query"
    if request.valid is not None or request.dropout:
        return "keys or weights are left out one by one"
    if q.device.type != "cpu":
        return "its tiles are made for the cache of a processor"
    if torch.compiler.is_compiling():
        return "torch.compile sees whole tensors better than tiles"
    return "there are no keys at all" if request.keys.length == 0 or q.numel() == 0 else None


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why tiles are not worthwhile; None if they are."""
    return f"for fewer than {FEWEST} queries the whole term is as fast" if request.queries.length < FEWEST else None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention in tiles."""
    term, band = request.bias, _band(request.pattern)
    assert isinstance(term, ByDistance)
    assert isinstance(request.queries, Range)
    assert isinstance(request.keys, Range)
    assert band is not None
    nearest, furthest = band
    most = term.reach if furthest is None else min(term.reach, furthest)
    reaches = [most] * q.shape[1] if term.reaches is None else [min(most, reach) for reach in term.reaches]
    offset = request.queries.start - request.keys.start
    factors = (q, k, v, term.q, term.table, term.level)
    learning = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in factors)
    out: Tensor = operation(*factors, request.scale, offset, nearest, reaches, learning, torch.get_num_threads())[0]
    return out


def _band(pattern: Pattern) -> tuple[int, int | None] | None:
    """The nearest distance that a pattern shows, and the first that it does not show any more; None of other patterns."""
    if isinstance(pattern, Causal):
        return 0, None
    if isinstance(pattern, Local) and pattern.causal:
        nearest = 0 if pattern.include_self else 1
        return nearest, nearest + pattern.window
    return None


class HeadRows(NamedTuple):
    """One head of a few rows of a batch, in the type that is computed in; scores are logarithms to base 2."""

    q: Tensor
    """(rows, n, head_dim), times the scale."""
    k: Tensor
    v: Tensor
    far: Tensor
    """(rows, n, width), the queries that meet the table; with a 1 at the end of each where a level is the same for all."""
    table: Tensor
    """(distances, width), the furthest first; with that level as its last column."""
    level: Tensor | None
    """(rows, n, distances) of a level that is another for every query, the furthest first; SHUT where keys are shut."""

    def scores(self, tile: BandTile, room: Room, s: Tensor) -> Tensor:
        """The scores (groups, queries, keys) of a tile, SHUT where a query may not look, written into s."""
        p = room.by_distance(tile, len(self.q))
        there = tile.distances(len(self.table))
        flat = p.view(-1, tile.width)[:, tile.open]
        torch.mm(tile.queries(self.far).reshape(len(flat), -1), self.table[there].T, out=flat)
        if self.level is not None:
            p[..., tile.open].add_(tile.queries(self.level)[..., there])
        s.copy_(tile.shifted(p))  # E24
        return s.baddbmm_(tile.queries(self.q), tile.seen(self.k).mT)


class Room:
    """Room for the scores of a tile, and for its terms by distance, which are SHUT in all columns that are not open."""

    def __init__(self, keys: Tensor, distances: Tensor) -> None:
        self.keys, self.distances = keys, distances
        self.shut: tuple[object, ...] = ()
        """Of what tiles the closed columns are shut: nobody writes there, so that the next tile of this shape finds them so."""

    def by_key(self, tile: BandTile, rows: int) -> Tensor:
        """(groups, queries, keys)."""
        shape = (rows * tile.groups, tile.rows, tile.keys)
        return self.keys[: math.prod(shape)].view(shape)

    def by_distance(self, tile: BandTile, rows: int) -> Tensor:
        """(groups, queries, width)."""
        shape = (rows * tile.groups, tile.rows, tile.width)
        p = self.distances[: math.prod(shape)].view(shape)
        which = (*shape, tile.open.start, tile.open.stop)
        if self.shut != which:
            p[..., : tile.open.start].fill_(SHUT)
            p[..., tile.open.stop :].fill_(SHUT)
            self.shut = which
        return p


class DistanceWork(NamedTuple):
    """What both directions share: the tiles of each head, and how many rows of the batch are taken at a time."""

    tiles: list[list[BandTile]]
    whole: bool
    """Whether every query is in a tile."""
    rows: int
    dtype: torch.dtype
    scale: float

    def pairs(self, batch: int) -> int:
        """All pairs that are computed."""
        return batch * sum(tile.groups * tile.rows * tile.keys for tiles in self.tiles for tile in tiles)

    def room(self, like: Tensor) -> Room:
        """Room for the largest tile."""
        sizes = [(tile.groups * tile.rows * tile.keys, tile.groups * tile.rows * tile.width) for tiles in self.tiles for tile in tiles]
        keys, distances = (like.new_empty(self.rows * max(each), dtype=self.dtype) for each in zip((0, 0), *sizes, strict=True))
        return Room(keys, distances)

    def pieces(self, batch: int) -> Iterator[tuple[slice, int, list[BandTile]]]:
        """The rows and the head of each piece of work, and its tiles; in this order weights are kept."""
        for head, tiles in enumerate(self.tiles):
            for first in range(0, batch, self.rows):
                yield slice(first, min(first + self.rows, batch)), head, tiles


class Heads(NamedTuple):
    """All heads of all rows, in the type that is computed in, side by side in memory."""

    q: Tensor
    k: Tensor
    v: Tensor
    far: Tensor
    table: Tensor
    """(heads or 1, distances, width), the furthest first."""
    level: Tensor | None
    """(rows, heads, n, distances), the furthest first."""

    def some(self, rows: slice, head: int) -> HeadRows:
        """One head of some rows."""
        level = None if self.level is None else self.level[rows, head]
        return HeadRows(
            self.q[rows, head], self.k[rows, head], self.v[rows, head], self.far[rows, head], _table(self.table, head), level
        )  # fmt: skip


def _heads(q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, work: DistanceWork) -> Heads:
    """The heads with what belongs into their factors: the scale, the logarithm, and a level that is the same for all queries."""
    q, k, v, far, table = (x.to(work.dtype) for x in (q, k, v, far, table))
    turned, met, own = table.flip(1), far * LOG2E, None
    if level is not None:
        added = level.flip(-1).to(work.dtype).clamp_(min=SHUT)
        if _is_common(level):  # then it costs no more than a wider product
            met = F.pad(met, (0, 1), value=LOG2E)
            both = max(len(turned), added.shape[1])
            turned = torch.cat([turned.expand(both, -1, -1), added[0].mT.expand(both, -1, -1)], dim=2)
        else:
            own = (added * LOG2E).expand(*q.shape[:3], -1).contiguous()
    return Heads((q * (work.scale * LOG2E)).contiguous(), k.contiguous(), v.contiguous(), met.contiguous(), turned, own)


def _is_common(level: Tensor) -> bool:
    """Whether a level is the same for all queries."""
    return len(level) == 1 and level.shape[2] == 1


def _table(table: Tensor, head: int) -> Tensor:
    """A head's table, which all may share."""
    return table[head if len(table) > 1 else 0]


def _work(q: Tensor, k: Tensor, scale: float, offset: int, nearest: int, reaches: list[int], threads: int) -> DistanceWork:
    made = {reach: list(cut(q.shape[2], k.shape[2], offset, nearest, reach)) for reach in set(reaches)}
    most = TILE * threads
    largest = max((tile.rows * tile.width for tiles in made.values() for tile in tiles), default=1)
    rows = max(1, min(len(q), most // largest))
    together = {reach: joined(tiles, most) for reach, tiles in made.items()}
    if len(q) // rows * sum(map(len, made.values())) > len(q) * sum(map(len, together.values())):  # fewer pieces of work, row by row
        made, rows = together, 1
    whole = all(sum(tile.groups * tile.rows for tile in tiles) == q.shape[2] for tiles in made.values())
    return DistanceWork([made[reach] for reach in reaches], whole, rows, wide(q.dtype), scale)


def forward(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None,
    scale: float, offset: int, nearest: int, reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention (batch, heads, n, value_dim), the logarithms of its sums (batch, heads, n, 1), and its weights unless they are many."""
    work = _work(q, k, scale, offset, nearest, reaches, threads)
    out = (v.new_empty if work.whole else v.new_zeros)((*q.shape[:3], v.shape[3]))
    lse = q.new_full((*q.shape[:3], 1), EMPTY, dtype=work.dtype)
    weights = TileWeights(q.new_empty(_kept(work, len(q), learning), dtype=work.dtype))
    with torch.autocast(q.device.type, enabled=False):
        room, heads = work.room(q), _heads(q, k, v, far, table, level, work)
        for rows, head, tiles in work.pieces(len(q)):
            each = heads.some(rows, head)
            for tile in tiles:
                s = each.scores(tile, room, weights.next(room.by_key(tile, len(each.q))))
                top = s.amax(dim=2, keepdim=True).clamp_(min=EMPTY)
                s.sub_(top).exp2_()
                total = s.sum(dim=2, keepdim=True).clamp_(min=1e-30)
                tile.queries(out[rows, head]).copy_(torch.bmm(s.div_(total), tile.seen(each.v)))
                tile.queries(lse[rows, head]).copy_(total.log2_().add_(top))
    return out, lse, weights.all


def _kept(work: DistanceWork, batch: int, learning: bool) -> int:
    """How many weights are kept for the backward pass."""
    pairs = work.pairs(batch)
    return pairs if learning and pairs <= KEPT else 0


class TileWeights:
    """The weights of all tiles, one behind the other, where they are kept."""

    def __init__(self, all_: Tensor) -> None:
        self.all, self.place = all_, 0

    def next(self, room: Tensor) -> Tensor:
        """Where the weights of the next tile are kept; in the room for it where they are not."""
        if not len(self.all):
            return room
        self.place += room.numel()
        return self.all[self.place - room.numel() : self.place].view_as(room)


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, out: Tensor, lse: Tensor, kept: Tensor,
    scale: float, offset: int, nearest: int, reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, the queries that meet the table, the table, and the level (of none: nothing)."""
    work, weights = _work(q, k, scale, offset, nearest, reaches, threads), TileWeights(kept)
    with torch.autocast(q.device.type, enabled=False):
        room, other, heads = work.room(q), work.room(q), _heads(q, k, v, far, table, level, work)
        slopes = g.to(work.dtype).contiguous()
        d = (slopes * out).sum(dim=-1, keepdim=True)
        new = torch.empty_like if work.whole else torch.zeros_like
        made = Heads(
            new(heads.q), torch.zeros_like(heads.k), torch.zeros_like(heads.v), new(far, dtype=work.dtype, memory_format=CONTIGUOUS),
            torch.zeros_like(heads.table), None if heads.level is None else torch.zeros_like(heads.level),
        )  # fmt: skip
        for rows, head, tiles in work.pieces(len(q)):
            each, back = heads.some(rows, head), DistanceGradients(slopes[rows, head], d[rows, head], made.some(rows, head))
            for tile in tiles:
                p = weights.next(room.by_key(tile, len(each.q)))
                if not len(kept):
                    p = each.scores(tile, room, p).sub_(tile.queries(lse[rows, head])).exp2_()
                _backward(each, back, tile, p, other, scale)
    dtable, dlevel = made.table[..., : far.shape[3]].flip(1).sum_to_size(table.shape), q.new_zeros(())
    if level is not None:
        by_head = made.table[None, :, :, -1:].mT if made.level is None else made.level
        dlevel = by_head.flip(-1).sum_to_size(level.shape)
    return made.q.to(q.dtype), made.k.to(k.dtype), made.v.to(v.dtype), made.far.to(far.dtype), dtable.to(table.dtype), dlevel.to(q.dtype)


class DistanceGradients(NamedTuple):
    """What the backward pass of a head is given, and where its gradients go."""

    g: Tensor
    """The gradient (rows, n, value_dim) of the output."""
    d: Tensor
    """(rows, n, 1), the products of g and the output."""
    to: HeadRows


def _backward(each: HeadRows, back: DistanceGradients, tile: BandTile, p: Tensor, room: Room, scale: float) -> None:
    """Adds up the gradients of a tile, whose weights are p."""
    to, g, s = back.to, tile.queries(back.g), room.by_key(tile, len(each.q))
    torch.bmm(g, tile.seen(each.v).mT, out=s)
    tile.add(to.v, torch.bmm(p.mT, g))
    s.sub_(tile.queries(back.d)).mul_(p)
    tile.queries(to.q).copy_(torch.bmm(s, tile.seen(each.k)).mul_(scale))
    tile.add(to.k, torch.bmm(s.mT, tile.queries(each.q)).mul_(1.0 / LOG2E))  # the queries have the scale and the logarithm in them
    by_distance = room.by_distance(tile, len(each.q))
    by_distance[..., tile.open.start : tile.rows - 1].zero_()  # of distances at which some of the queries have no key
    by_distance[..., tile.keys : tile.open.stop].zero_()
    tile.shifted(by_distance).copy_(s)
    there = tile.distances(len(each.table))
    flat = by_distance.view(-1, tile.width)[:, tile.open]
    far = tile.queries(to.far)
    far.copy_((flat @ each.table[there, : far.shape[2]]).view_as(far))
    to.table[there].addmm_(flat.T, tile.queries(each.far).reshape(len(flat), -1), alpha=1.0 / LOG2E)
    if to.level is not None:
        tile.queries(to.level)[..., there].add_(by_distance[..., tile.open])


# As an operation of torch it is one thing to whoever looks on from outside, as `blocked` is.
NAMES = "float scale, int offset, int nearest, int[] reaches, bool learning, int threads"
operation = torch.library.custom_op(
    "formers::distances", forward, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, {NAMES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
operation_backward = torch.library.custom_op(
    "formers::distances_backward", backward, mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, Tensor out, Tensor lse, Tensor kept, "
    f"{NAMES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, scale: float, offset: int, nearest: int,
    reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    work = _work(q, k, scale, offset, nearest, reaches, threads)
    lse, kept = q.new_empty((*q.shape[:3], 1), dtype=work.dtype), q.new_empty(_kept(work, len(q), learning), dtype=work.dtype)
    return v.new_empty((*q.shape[:3], v.shape[3])), lse, kept


@operation_backward.register_fake
def _shapes_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v, far, table)), q.new_empty(() if level is None else level.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _go_back(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # asked for once: under checkpointing that computes them again
    *slopes, level = operation_backward(g, *saved, *ctx.rest)
    return *slopes, None if saved[5] is None else level, *(None,) * 6


operation.register_autograd(_go_back, setup_context=_keep)


def flops(shapes: tuple[tuple[int, ...], ...], offset: int, nearest: int, reaches: list[int], products: tuple[int, int, int]) -> int:
    """FLOPs of the tiles: so many products as wide as q, as v, and, over the distances, as the table."""
    (batch, _, n, width), m, value, other = shapes[0], shapes[1][2], shapes[2][3], shapes[3][3]
    total = 0
    for reach in reaches:
        for tile in cut(n, m, offset, nearest, reach):
            pairs, far = tile.rows * tile.keys, tile.rows * (tile.open.stop - tile.open.start)
            total += pairs * (products[0] * width + products[1] * value) + far * products[2] * other
    return 2 * batch * total
