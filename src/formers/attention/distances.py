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

from formers.attention.bands import Tile, cut, joined
from formers.attention.request import Request
from formers.attention.tiles import EMPTY, LOG2E, SHUT, TILE, wide
from formers.core import Range
from formers.patterns import Causal, Local, Pattern
from formers.score import ByDistance

FEWEST = 16
"""Below so many queries the whole term is as fast."""


def refuses(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be tiled by distance here, or None where it can."""
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


def idles(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why tiles would not pay, or None where they do."""
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
    out: Tensor = operation(q, k, v, term.q, term.table, term.level, request.scale, offset, nearest, reaches)[0]
    return out


def _band(pattern: Pattern) -> tuple[int, int | None] | None:
    """The nearest distance that a pattern shows, and the first that it does not show any more; None of other patterns."""
    if isinstance(pattern, Causal):
        return 0, None
    if isinstance(pattern, Local) and pattern.causal:
        nearest = 0 if pattern.include_self else 1
        return nearest, nearest + pattern.window
    return None


class Head(NamedTuple):
    """One head of a few rows of a batch, in the type that is computed in; scores are logarithms to base 2."""

    q: Tensor
    """(rows, n, head_dim), times the scale."""
    k: Tensor
    v: Tensor
    far: Tensor
    """(rows, n, width), the queries that meet the table."""
    table: Tensor
    """(distances, width), the furthest first."""
    level: Tensor | None
    """(1 or rows, 1 or n, distances), the furthest first; SHUT where keys are shut."""

    def scores(self, tile: Tile, room: Room) -> Tensor:
        """The scores (groups, queries, keys) of a tile, SHUT where a query may not look."""
        q, p = tile.queries(self.q), room.by_distance(tile, len(self.q))
        p[..., : tile.open.start].fill_(SHUT)
        p[..., tile.open.stop :].fill_(SHUT)
        there = tile.distances(len(self.table))
        flat = p.view(-1, tile.width)[:, tile.open]
        torch.mm(tile.queries(self.far).reshape(len(flat), -1), self.table[there].T, out=flat)
        if self.level is not None:
            p[..., tile.open].add_(queries_of(tile, self.level)[..., there])
        s = room.by_key(tile, len(self.q))
        s.copy_(tile.shifted(p))  # E24
        return s.baddbmm_(q, tile.seen(self.k).mT)


class Room(NamedTuple):
    """Room for the scores of a tile, and for its terms by distance."""

    keys: Tensor
    distances: Tensor

    def by_key(self, tile: Tile, rows: int) -> Tensor:
        """(groups, queries, keys)."""
        return self._part(self.keys, rows * tile.groups, tile.rows, tile.keys)

    def by_distance(self, tile: Tile, rows: int) -> Tensor:
        """(groups, queries, width)."""
        return self._part(self.distances, rows * tile.groups, tile.rows, tile.width)

    def _part(self, room: Tensor, *shape: int) -> Tensor:
        return room[: math.prod(shape)].view(shape)


def queries_of(tile: Tile, level: Tensor) -> Tensor:
    """Of a level (1 or rows, 1 or n, distances) what is of a tile's queries, broadcasting to (groups, queries, distances)."""
    return level if level.shape[1] == 1 else tile.queries(level)


class Work(NamedTuple):
    """What both directions share: the tiles of each head, and how many rows of the batch are taken at a time."""

    tiles: list[list[Tile]]
    rows: int
    dtype: torch.dtype
    scale: float

    def room(self, like: Tensor) -> Room:
        """Room for the largest tile."""
        sizes = [(tile.groups * tile.rows * tile.keys, tile.groups * tile.rows * tile.width) for tiles in self.tiles for tile in tiles]
        keys, distances = (like.new_empty(self.rows * max(each), dtype=self.dtype) for each in zip((0, 0), *sizes, strict=True))
        return Room(keys, distances)

    def heads(self, batch: int) -> Iterator[tuple[slice, int, list[Tile]]]:
        """The rows and the head of each piece of work, and its tiles."""
        for head, tiles in enumerate(self.tiles):
            for first in range(0, batch, self.rows):
                yield slice(first, min(first + self.rows, batch)), head, tiles

    def head(self, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, rows: slice, head: int) -> Head:
        """One head of some rows."""
        if level is not None:
            level = _level(level, rows, head).flip(-1).to(self.dtype).mul(LOG2E).clamp_(min=SHUT)
        here = [x[rows, head].to(self.dtype) for x in (q, k, v, far)]
        return Head(
            here[0] * (self.scale * LOG2E), here[1].contiguous(), here[2].contiguous(), here[3] * LOG2E,
            _table(table, head).flip(0).to(self.dtype), level,
        )  # fmt: skip


def _level(level: Tensor, rows: slice, head: int) -> Tensor:
    """A head of some rows of a level, all of which may share one."""
    return level[rows if len(level) > 1 else slice(None), head if level.shape[1] > 1 else 0]


def _table(table: Tensor, head: int) -> Tensor:
    """A head's table, which all may share."""
    return table[head if len(table) > 1 else 0]


def _work(q: Tensor, k: Tensor, scale: float, offset: int, nearest: int, reaches: list[int]) -> Work:
    made = {reach: list(cut(q.shape[2], k.shape[2], offset, nearest, reach)) for reach in set(reaches)}
    most = TILE * torch.get_num_threads()
    largest = max((tile.rows * tile.width for tiles in made.values() for tile in tiles), default=1)
    rows = max(1, min(len(q), most // largest))
    together = {reach: joined(tiles, most) for reach, tiles in made.items()}
    if len(q) // rows * sum(map(len, made.values())) > len(q) * sum(map(len, together.values())):  # fewer pieces of work, row by row
        made, rows = together, 1
    return Work([made[reach] for reach in reaches], rows, wide(q.dtype), scale)


def forward(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None,
    scale: float, offset: int, nearest: int, reaches: list[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention (batch, heads, n, value_dim), and the logarithms of its sums (batch, heads, n, 1)."""
    work = _work(q, k, scale, offset, nearest, reaches)
    out = v.new_zeros((*q.shape[:3], v.shape[3]))
    lse = q.new_full((*q.shape[:3], 1), EMPTY, dtype=work.dtype)
    with torch.autocast(q.device.type, enabled=False):
        room = work.room(q)
        for rows, head, tiles in work.heads(len(q)):
            each = work.head(q, k, v, far, table, level, rows, head)
            for tile in tiles:
                s = each.scores(tile, room)
                top = s.amax(dim=2, keepdim=True).clamp_(min=EMPTY)
                s.sub_(top).exp2_()
                total = s.sum(dim=2, keepdim=True).clamp_(min=1e-30)
                tile.queries(out[rows, head]).copy_(torch.bmm(s, tile.seen(each.v)).div_(total))
                tile.queries(lse[rows, head]).copy_(total.log2_().add_(top))
    return out, lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, out: Tensor, lse: Tensor,
    scale: float, offset: int, nearest: int, reaches: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, the queries that meet the table, the table, and the level (of none: nothing)."""
    work = _work(q, k, scale, offset, nearest, reaches)
    dq, dk, dv, dfar, dtable = (torch.zeros(x.shape, dtype=work.dtype, device=x.device) for x in (q, k, v, far, table))
    dlevel = q.new_zeros(() if level is None else level.shape, dtype=work.dtype)
    with torch.autocast(q.device.type, enabled=False):
        room, other = work.room(q), work.room(q)
        for rows, head, tiles in work.heads(len(q)):
            each = work.head(q, k, v, far, table, level, rows, head)
            slopes = g[rows, head].to(work.dtype).contiguous()
            back = Back(
                slopes, (slopes * out[rows, head]).sum(dim=-1, keepdim=True), lse[rows, head],
                dq[rows, head], dk[rows, head], dv[rows, head], dfar[rows, head], torch.zeros_like(each.table),
                None if each.level is None else torch.zeros_like(each.level),
            )  # fmt: skip
            for tile in tiles:
                _backward(each, back, tile, room, other, scale)
            _table(dtable, head).add_(back.table.flip(0))
            if back.level is not None:
                _level(dlevel, rows, head).add_(back.level.flip(-1))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dfar.to(far.dtype), dtable.to(table.dtype), dlevel.to(q.dtype)


class Back(NamedTuple):
    """What the backward pass of a head is given, and where its gradients go."""

    g: Tensor
    """The gradient (rows, n, value_dim) of the output."""
    d: Tensor
    """(rows, n, 1), the products of g and the output."""
    lse: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    far: Tensor
    table: Tensor
    level: Tensor | None


def _backward(each: Head, back: Back, tile: Tile, room: Room, other: Room, scale: float) -> None:
    """Adds up the gradients of a tile."""
    p = each.scores(tile, room).sub_(tile.queries(back.lse)).exp2_()
    g, s = tile.queries(back.g), other.by_key(tile, len(each.q))
    torch.bmm(g, tile.seen(each.v).mT, out=s)
    tile.add(back.v, torch.bmm(p.mT, g))
    s.sub_(tile.queries(back.d)).mul_(p)
    tile.queries(back.q).copy_(torch.bmm(s, tile.seen(each.k)).mul_(scale))
    tile.add(back.k, torch.bmm(s.mT, tile.queries(each.q)).mul_(1.0 / LOG2E))  # the queries have the scale and the logarithm in them
    by_distance = other.by_distance(tile, len(each.q)).zero_()
    tile.shifted(by_distance).copy_(s)
    there = tile.distances(len(each.table))
    flat = by_distance.view(-1, tile.width)[:, tile.open]
    far = tile.queries(back.far)
    far.copy_((flat @ each.table[there]).view_as(far))
    back.table[there].addmm_(flat.T, tile.queries(each.far).reshape(len(flat), -1), alpha=1.0 / LOG2E)
    if back.level is not None:
        level = queries_of(tile, back.level)[..., there]
        level.add_(by_distance[..., tile.open].sum_to_size(level.shape))


# As an operation of torch it is one thing to whoever looks on from outside, as `blocked` is.
NAMES = "float scale, int offset, int nearest, int[] reaches"
operation = torch.library.custom_op(
    "formers::distances", forward, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, {NAMES}) -> (Tensor, Tensor)",
)  # fmt: skip
operation_backward = torch.library.custom_op(
    "formers::distances_backward", backward, mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, Tensor out, Tensor lse, "
    f"{NAMES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty((*q.shape[:3], v.shape[3])), q.new_empty((*q.shape[:3], 1), dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v, far, table)), q.new_empty(() if level is None else level.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _go_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # asked for once: under checkpointing that computes them again
    *slopes, level = operation_backward(g, *saved, *ctx.rest)
    return *slopes, None if saved[5] is None else level, None, None, None, None


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
