"""The operands of attention with a term by distance, in the dtype of the computation: heads, their tiles, and scratch buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.bands import BandTile, cut, merge_alike
from formers.attention.executors.tiles import LOG2E, SHUT, TILE, wide


class HeadRows(NamedTuple):
    """One head of some rows of a batch, in the dtype of the computation; scores are logarithms to base 2."""

    q: Tensor
    """(rows, n, head_dim), times the scale."""
    k: Tensor
    v: Tensor
    far: Tensor
    """(rows, n, width), the queries of the term; with a column of ones if the level is the same for all queries."""
    table: Tensor
    """(distances, width), from the furthest; with that level as its last column."""
    level: Tensor | None
    """(rows, n, distances), from the furthest, if the level differs between queries; SHUT at masked keys."""

    def scores(self, tile: BandTile, buffers: DistanceBuffers, s: Tensor) -> Tensor:
        """The scores (groups, queries, keys) of a tile, SHUT at masked pairs, written into s."""
        p = buffers.by_distance(tile, len(self.q))
        there = tile.distances(len(self.table))
        flat = p.view(-1, tile.width)[:, tile.open]
        torch.mm(tile.queries(self.far).reshape(len(flat), -1), self.table[there].T, out=flat)
        if self.level is not None:
            p[..., tile.open].add_(tile.queries(self.level)[..., there])
        s.copy_(tile.shifted(p))  # E24
        return s.baddbmm_(tile.queries(self.q), tile.seen(self.k).mT)


class DistanceBuffers:
    """Scratch buffers for the scores of a tile, and for its terms by distance, which are SHUT in all masked columns."""

    def __init__(self, keys: Tensor, distances: Tensor) -> None:
        self.keys, self.distances = keys, distances
        self.shut: tuple[object, ...] = ()
        """The shape for which masked columns are already SHUT: nothing else writes there, so the next tile of this shape reuses them."""

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
    """What both passes share: the tiles of each head, and the number of rows of the batch computed at a time."""

    tiles: list[list[BandTile]]
    whole: bool
    """Whether every query is in a tile."""
    rows: int
    dtype: torch.dtype
    scale: float

    def pairs(self, batch: int) -> int:
        """The number of computed pairs."""
        return batch * sum(tile.groups * tile.rows * tile.keys for tiles in self.tiles for tile in tiles)

    def buffers(self, like: Tensor) -> DistanceBuffers:
        """Scratch buffers for the largest tile."""
        sizes = [(tile.groups * tile.rows * tile.keys, tile.groups * tile.rows * tile.width) for tiles in self.tiles for tile in tiles]
        keys, distances = (like.new_empty(self.rows * max(each), dtype=self.dtype) for each in zip((0, 0), *sizes, strict=True))
        return DistanceBuffers(keys, distances)

    def pieces(self, batch: int) -> Iterator[tuple[slice, int, list[BandTile]]]:
        """The rows, the head and the tiles of each unit of work, in the order in which weights are saved."""
        for head, tiles in enumerate(self.tiles):
            for first in range(0, batch, self.rows):
                yield slice(first, min(first + self.rows, batch)), head, tiles


class Heads(NamedTuple):
    """All heads of all rows, contiguous, in the dtype of the computation."""

    q: Tensor
    k: Tensor
    v: Tensor
    far: Tensor
    table: Tensor
    """(heads or 1, distances, width), from the furthest."""
    level: Tensor | None
    """(rows, heads, n, distances), from the furthest."""

    def some(self, rows: slice, head: int) -> HeadRows:
        """One head of some rows."""
        level = None if self.level is None else self.level[rows, head]
        return HeadRows(
            self.q[rows, head], self.k[rows, head], self.v[rows, head], self.far[rows, head], _table(self.table, head), level
        )  # fmt: skip


def all_heads(q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, work: DistanceWork) -> Heads:
    """The heads with the scale, the factor log2(e), and a level that is the same for all queries, multiplied into their operands."""
    q, k, v, far, table = (x.to(work.dtype) for x in (q, k, v, far, table))
    turned, term_q, own = table.flip(1), far * LOG2E, None
    if level is not None:
        added = level.flip(-1).to(work.dtype).clamp_(min=SHUT)
        if is_common(level):  # a wider product is cheaper than an addition
            term_q = F.pad(term_q, (0, 1), value=LOG2E)
            both = max(len(turned), added.shape[1])
            turned = torch.cat([turned.expand(both, -1, -1), added[0].mT.expand(both, -1, -1)], dim=2)
        else:
            own = (added * LOG2E).expand(*q.shape[:3], -1).contiguous()
    return Heads((q * (work.scale * LOG2E)).contiguous(), k.contiguous(), v.contiguous(), term_q.contiguous(), turned, own)


def is_common(level: Tensor) -> bool:
    """Whether a level is the same for all queries."""
    return len(level) == 1 and level.shape[2] == 1


def _table(table: Tensor, head: int) -> Tensor:
    """A head's table; all heads may share one."""
    return table[head if len(table) > 1 else 0]


def head_reaches(reaches: list[int], level: Tensor | None, heads: int) -> list[int]:
    """The reach of each head; if one reach is given for all, cut to the distances that the level of a head does not mask."""
    if len(reaches) == heads:
        return reaches
    if level is None or not is_common(level):
        return reaches * heads
    seen = (level[0, :, 0] > float("-inf")) * torch.arange(1, level.shape[3] + 1)
    return [min(reaches[0], last) for last in seen.amax(dim=1).expand(heads).tolist()]


def distance_work(q: Tensor, k: Tensor, scale: float, offset: int, nearest: int, reaches: list[int], threads: int) -> DistanceWork:
    threads = threads or torch.get_num_threads()
    made = {reach: list(cut(q.shape[2], k.shape[2], offset, nearest, reach)) for reach in set(reaches)}
    most = TILE * threads
    largest = max((tile.rows * tile.width for tiles in made.values() for tile in tiles), default=1)
    rows = max(1, min(len(q), most // largest))
    together = {reach: merge_alike(tiles, most) for reach, tiles in made.items()}
    if len(q) // rows * sum(map(len, made.values())) > len(q) * sum(map(len, together.values())):  # fewer units of work, row by row
        made, rows = together, 1
    whole = all(sum(tile.groups * tile.rows for tile in tiles) == q.shape[2] for tiles in made.values())
    return DistanceWork([made[reach] for reach in reaches], whole, rows, wide(q.dtype), scale)
