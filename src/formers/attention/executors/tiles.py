"""A plan in tiles: batches of small matrix products that fit into a processor's cache, and the indices of their tokens in a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core.tables import cached
from formers.patterns import Pattern
from formers.patterns.plan import GroupedPositions, Piece, Round, SelectedPositions, Where

SHUT = -1e30
"""Added to the score of a masked key: finite, so that differences of two of them are defined."""
EMPTY = 0.1 * SHUT
"""The largest score, and the log-sum, of a query without keys: far above SHUT, far below any score."""
LOG2E = 1.0 / math.log(2.0)
TILE = 3 << 16
"""Pairs per tile and thread on a CPU: their scores and operands fit into the cache of a core."""


class Place(NamedTuple):
    """The tokens of a tile in a row x (n, width): as a view if they are contiguous runs, else by index."""

    where: Where
    numbers: Tensor | None
    """The indices of selected blocks, flattened over all groups; None for grouped positions."""
    parts: tuple[GroupedPositions, ...]
    """The grouped positions in parts whose groups do not overlap."""

    @property
    def solid(self) -> bool:
        """Whether the tokens of all groups are contiguous, so that products can be written in place."""
        where = self.where
        return isinstance(where, GroupedPositions) and where.stride == 1 and (where.groups == 1 or where.step == where.size)

    def take(self, x: Tensor) -> Tensor:
        """The tokens (groups, size, width), as a view if they are contiguous runs."""
        where = self.where
        if isinstance(where, GroupedPositions):
            return _view(x, where) if where.stride == 1 else _view(x, where).contiguous()
        assert self.numbers is not None
        return self._blocks(x).index_select(0, self.numbers).view(where.groups, where.size, x.shape[1])

    def write(self, x: Tensor, a: Tensor, b: Tensor, fresh: bool, factor: float = 1.0) -> None:
        """Writes factor * a b (groups, size, width) there if `fresh`, or adds it."""
        if self.solid:
            _view(x, self.parts[0]).baddbmm_(a, b, beta=0.0 if fresh else 1.0, alpha=factor)
        elif fresh:
            self.put(x, torch.bmm(a, b).mul_(factor))
        else:
            self.add(x, torch.bmm(a, b), factor)

    def put(self, x: Tensor, y: Tensor) -> None:
        """Writes y (groups, size, width) there; no token may occur twice."""
        if isinstance(self.where, GroupedPositions):
            _view(x, self.where).copy_(y)
        else:
            assert self.numbers is not None
            self._blocks(x).index_copy_(0, self.numbers, y.view(len(self.numbers), -1))

    def add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
        """Adds factor * y (groups, size, width) there; a token that occurs twice gets both."""
        if self.numbers is not None:
            self._blocks(x).index_add_(0, self.numbers, y.view(len(self.numbers), -1), alpha=factor)
            return
        first = 0
        for part in self.parts:
            _view(x, part).add_(y[:, first : first + part.size], alpha=factor)
            first += part.size

    def _blocks(self, x: Tensor) -> Tensor:
        """x (n, width) as (blocks, unit * width), without the tokens of an incomplete block."""
        assert isinstance(self.where, SelectedPositions)
        unit = self.where.unit
        count = x.shape[0] // unit
        return x[: count * unit].view(count, unit * x.shape[1])


Shape = tuple[int, int, int]


class PieceTile(NamedTuple):
    """Some groups of a piece."""

    queries: Place
    keys: Place
    term: Tensor | None
    """(m, queries), 0 or SHUT: added to the scores of the last m keys."""
    shape: Shape
    """(groups, keys, queries)."""


class Tiles(NamedTuple):
    """The tiles of a round."""

    tiles: tuple[PieceTile, ...]
    back: tuple[PieceTile, ...]
    """The same pairs in tiles for the backward pass."""
    among: Place | None
    """Keys that are gathered first; the tiles then index the gathered keys."""
    whole: bool
    """Whether every query of the row is in one of the tiles."""
    once: tuple[bool, bool]
    """Whether, in the backward pass, every query is in exactly one of the tiles, and whether every key is."""


@cached(256)
def tiles(pattern: Pattern, n: int, head: int, limit: int, dtype: torch.dtype, device: torch.device, turn: bool) -> tuple[Tiles, ...]:
    """The rounds of a head's plan over n tokens, in tiles of at most `limit` pairs, but at least one group.

    Without `turn` the backward pass uses the tiles of the forward pass.
    """
    with torch.inference_mode(False):  # tables first computed in evaluation are also used in training
        return tuple(_tiles(part if turn else part._replace(by_keys=None), n, limit, dtype, device) for part in pattern.pieces(n, head))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the computation: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _tiles(part: Round, n: int, limit: int, dtype: torch.dtype, device: torch.device) -> Tiles:
    """The tiles of a round."""
    forward = tuple(tile for piece in part.pieces for tile in _cut(piece, limit, dtype, device))
    back = forward if part.by_keys is None else tuple(tile for piece in part.by_keys for tile in _cut(piece, limit, dtype, device))
    whole = sum(piece.queries.groups * piece.queries.size for piece in part.pieces) == n
    among = None if part.among is None else _place(part.among, device)
    if part.by_keys is None:
        return Tiles(forward, back, among, whole, (whole, False))
    return Tiles(forward, back, among, whole, (False, sum(piece.keys.groups * piece.keys.size for piece in part.by_keys) == n))


def units(rounds: tuple[Tiles, ...]) -> set[int]:
    """The block sizes of selected positions; a row is padded to a multiple of each, so that all of its blocks exist."""
    chosen = (place.where for part in rounds for tile in part.tiles for place in (tile.queries, tile.keys))
    return {1, *(where.unit for where in chosen if isinstance(where, SelectedPositions))}


def _cut(piece: Piece, limit: int, dtype: torch.dtype, device: torch.device) -> Iterator[PieceTile]:
    """The tiles of a piece."""
    queries, keys, term = piece.queries, piece.keys, None
    if piece.mask is not None:
        term = torch.as_tensor(piece.mask, device=device).T.to(dtype).sub_(1.0).mul_(-SHUT).contiguous()
    each = max(1, limit // (queries.size * keys.size))
    for first in range(0, queries.groups, each):
        count = min(each, queries.groups - first)
        a, b = _place(queries.part(first, count), device), _place(keys.part(first, count), device)
        yield PieceTile(a, b, term, (count, keys.size, queries.size))


def _place(where: Where, device: torch.device) -> Place:
    if isinstance(where, SelectedPositions):
        return Place(where, torch.as_tensor(where.blocks, device=device).flatten(), ())
    each = where.apart
    return Place(where, None, tuple(where.elements(i, min(each, where.size - i)) for i in range(0, where.size, each)))


def _view(x: Tensor, where: GroupedPositions) -> Tensor:
    """The tokens (groups, size, width) of grouped positions in x (n, width), as a view."""
    step, last = x.stride()
    strides = (where.step * step, where.stride * step, last)
    return x.as_strided((where.groups, where.size, x.shape[1]), strides, x.storage_offset() + where.start * step)
