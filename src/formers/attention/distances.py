"""Attention with a term by distance, in tiles: relative scores and learned spans without a matrix of all pairs in either direction.

s_ij = scale q_i . k_j + b_ij        b_ij = p_{i, i-j}        p_{i, x} = q'_i . t_x + l_x        E24

For a few queries at a time p is a product with a slice of the table, whose rows go from the furthest distance to the nearest. Each row of
p is then shifted against the one above it by one place: read with a row one element shorter than it is, p *is* b. So the shift of
Transformer-XL costs nothing, keys that a head's span has shut are never computed, and the backward pass computes tiles again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.request import Request
from formers.attention.tiles import EMPTY, LOG2E, SHUT, TILE, wide
from formers.core import Range
from formers.patterns import Causal, Local, Pattern
from formers.score import ByDistance

QUERIES = 64
"""Queries of a tile."""
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


class Tile(NamedTuple):
    """Queries first ... stop-1 over keys low ... high-1, and their distances, the furthest first: of these some columns are open."""

    first: int
    stop: int
    low: int
    high: int
    furthest: int
    """The distance of column 0; it falls by one from column to column."""
    open: slice
    """The columns whose distances a query may see."""

    @property
    def rows(self) -> int:
        return self.stop - self.first

    @property
    def keys(self) -> int:
        return self.high - self.low

    @property
    def width(self) -> int:
        """Columns of p: for the first query of a tile the last keys are later ones, for the last query the first keys are too far."""
        return self.rows + self.keys - 1

    def slice(self, size: int) -> slice:
        """The open rows of a table of `size` distances, the furthest first."""
        start = size - 1 - self.furthest
        return slice(start + self.open.start, start + self.open.stop)


def cut(n: int, m: int, offset: int, nearest: int, reach: int) -> Iterator[Tile]:
    """The tiles of n queries, the first of them `offset` behind the first of m keys, that see distances nearest ... reach-1."""
    for first in range(0, n, QUERIES):
        stop = min(first + QUERIES, n)
        low, high = max(0, offset + first - reach + 1), min(m, offset + stop - nearest)
        if high > low:
            furthest = offset + stop - 1 - low
            yield Tile(
                first,
                stop,
                low,
                high,
                furthest,
                slice(max(0, furthest - reach + 1), furthest - max(nearest, offset + first - high + 1) + 1),
            )


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

    def scores(self, tile: Tile, room: tuple[Tensor, Tensor]) -> Tensor:
        """The scores (rows, queries, keys) of a tile, SHUT where a query may not look."""
        count = len(self.q)
        p = room[1][: count * tile.rows * tile.width].view(count, tile.rows, tile.width)
        p[..., : tile.open.start].fill_(SHUT)
        p[..., tile.open.stop :].fill_(SHUT)
        there = tile.slice(len(self.table))
        flat = p.view(count * tile.rows, tile.width)[:, tile.open]
        torch.mm(self.far[:, tile.first : tile.stop].reshape(count * tile.rows, -1), self.table[there].T, out=flat)
        if self.level is not None:
            level = self.level if self.level.shape[1] == 1 else self.level[:, tile.first : tile.stop]
            p[..., tile.open].add_(level[..., there])
        s = room[0][: count * tile.rows * tile.keys].view(count, tile.rows, tile.keys)
        s.copy_(shifted(p, tile))  # E24
        return s.baddbmm_(self.q[:, tile.first : tile.stop], self.k[:, tile.low : tile.high].mT)


def shifted(p: Tensor, tile: Tile) -> Tensor:
    """p (rows, queries, width) by distance as a view (rows, queries, keys) by key."""
    return p.as_strided((len(p), tile.rows, tile.keys), (tile.rows * tile.width, tile.width - 1, 1), p.storage_offset() + tile.rows - 1)


class Work(NamedTuple):
    """What both directions share: the tiles of each head, how many rows of the batch are taken at a time, and room for a tile."""

    tiles: list[list[Tile]]
    rows: int
    dtype: torch.dtype
    scale: float

    def room(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Room for the scores of a tile, and for its p."""
        tiles = [tile for head in self.tiles for tile in head]
        sizes = (max(map(size, tiles), default=0) for size in (lambda t: t.rows * t.keys, lambda t: t.rows * t.width))
        first, second = (like.new_empty(self.rows * size, dtype=self.dtype) for size in sizes)
        return first, second

    def heads(self, batch: int) -> Iterator[tuple[slice, int, list[Tile]]]:
        """The rows and the head of each piece of work, and its tiles."""
        for head, tiles in enumerate(self.tiles):
            for first in range(0, batch, self.rows):
                yield slice(first, min(first + self.rows, batch)), head, tiles

    def head(self, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, rows: slice, head: int) -> Head:
        """One head of some rows."""
        if level is not None:
            level = level[rows if len(level) > 1 else slice(None), head if level.shape[1] > 1 else 0]
            level = level.flip(-1).to(self.dtype).mul(LOG2E).clamp_(min=SHUT)
        here = [x[rows, head].to(self.dtype) for x in (q, k, v, far)]
        return Head(
            here[0] * (self.scale * LOG2E), here[1].contiguous(), here[2].contiguous(), here[3] * LOG2E,
            table[head if len(table) > 1 else 0].flip(0).to(self.dtype), level,
        )  # fmt: skip


def _work(q: Tensor, k: Tensor, scale: float, offset: int, nearest: int, reaches: list[int]) -> Work:
    made = {reach: list(cut(q.shape[2], k.shape[2], offset, nearest, reach)) for reach in set(reaches)}
    largest = max((tile.rows * tile.width for tiles in made.values() for tile in tiles), default=1)
    rows = max(1, min(q.shape[0], TILE * torch.get_num_threads() // largest))
    return Work([made[reach] for reach in reaches], rows, wide(q.dtype), scale)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    far: Tensor,
    table: Tensor,
    level: Tensor | None,
    scale: float,
    offset: int,
    nearest: int,
    reaches: list[int],
) -> tuple[Tensor, Tensor]:
    """Attention (batch, heads, n, value_dim), and the logarithms of its sums (batch, heads, n)."""
    work = _work(q, k, scale, offset, nearest, reaches)
    out = v.new_zeros((*q.shape[:3], v.shape[3]))
    lse = q.new_full(q.shape[:3], EMPTY, dtype=work.dtype)
    with torch.autocast(q.device.type, enabled=False):
        room = work.room(q)
        for rows, head, tiles in work.heads(len(q)):
            each = work.head(q, k, v, far, table, level, rows, head)
            for tile in tiles:
                s = each.scores(tile, room)
                top = s.amax(dim=2, keepdim=True).clamp_(min=EMPTY)
                s.sub_(top).exp2_()
                total = s.sum(dim=2, keepdim=True).clamp_(min=1e-30)
                y = torch.bmm(s, each.v[:, tile.low : tile.high])
                out[rows, head, tile.first : tile.stop] = y.div_(total)
                lse[rows, head, tile.first : tile.stop] = total.log2_().add_(top)[..., 0]
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
            slopes = g[rows, head].to(work.dtype)
            d = (slopes * out[rows, head]).sum(dim=-1, keepdim=True)
            back = torch.zeros_like(each.table)
            back_level = None if each.level is None else torch.zeros_like(each.level)
            for tile in tiles:
                i, j = slice(tile.first, tile.stop), slice(tile.low, tile.high)
                p = each.scores(tile, room).sub_(lse[rows, head, i, None]).exp2_()
                s = other[0][: p.numel()].view_as(p)
                gt = slopes[:, i]
                torch.bmm(gt, each.v[:, j].mT, out=s)
                dv[rows, head, j] += torch.bmm(p.mT, gt)
                s.sub_(d[:, i]).mul_(p)
                dq[rows, head, i] = torch.bmm(s, each.k[:, j]).mul_(scale)
                dk[rows, head, j] += torch.bmm(s.mT, each.q[:, i]).mul_(1.0 / LOG2E)  # the queries have the scale and the logarithm in them
                t = other[1][: len(p) * tile.rows * tile.width].view(len(p), tile.rows, tile.width).zero_()
                shifted(t, tile).copy_(s)
                there = tile.slice(len(each.table))
                flat = t.view(-1, tile.width)[:, tile.open]
                met = each.far[:, i].reshape(len(flat), -1)
                dfar[rows, head, i] = (flat @ each.table[there]).view(len(p), tile.rows, -1)
                back[there].addmm_(flat.T, met, alpha=1.0 / LOG2E)
                if each.level is not None and back_level is not None:
                    slope = t[..., tile.open].sum_to_size(
                        *(1 if size == 1 else t.shape[x] for x, size in enumerate(each.level.shape[:2])), flat.shape[1]
                    )
                    (back_level if back_level.shape[1] == 1 else back_level[:, i])[..., there] += slope
            dtable[head if len(table) > 1 else 0] += back.flip(0)
            if level is not None and back_level is not None:
                dlevel[rows if len(level) > 1 else slice(None), head if level.shape[1] > 1 else 0] += back_level.flip(-1)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dfar.to(far.dtype), dtable.to(table.dtype), dlevel.to(q.dtype)


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
    return v.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v, far, table)), q.new_empty(() if level is None else level.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _go_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *slopes, level = operation_backward(g, *ctx.saved_tensors, *ctx.rest)
    return *slopes, None if ctx.saved_tensors[5] is None else level, None, None, None, None


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
