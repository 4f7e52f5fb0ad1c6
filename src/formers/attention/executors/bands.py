"""Tiles of banded attention: a few queries each, the keys that any of them sees, and the distances between them.

Consecutive tiles of the same shape are merged into one: a batch of small products. Either several rows of a batch are computed at a
time, or several tiles of one row; never both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

QUERIES = 64
"""Queries per tile."""


class BandTile(NamedTuple):
    """`groups` times `rows` queries beginning at `first`; each group sees `keys` keys, those of the first group beginning at `low`."""

    first: int
    rows: int
    low: int
    keys: int
    furthest: int
    """The distance of column 0 of p; it decreases by one per column."""
    open: slice
    """The columns with visible distances."""
    groups: int = 1

    @property
    def width(self) -> int:
        """Columns of p: for the first query of a group the last columns are later keys, for the last query the first are too far back."""
        return self.rows + self.keys - 1

    def distances(self, size: int) -> slice:
        """The visible rows of a table of `size` distances, sorted from the furthest."""
        start = size - 1 - self.furthest
        return slice(start + self.open.start, start + self.open.stop)

    def queries(self, x: Tensor) -> Tensor:
        """The queries (groups, rows, width) of x (batch, n, width), as a view."""
        here = x[:, self.first : self.first + self.groups * self.rows]
        return here if self.groups == 1 else here[0].view(self.groups, self.rows, x.shape[2])

    def seen(self, x: Tensor) -> Tensor:
        """The visible keys (groups, keys, width) of x (batch, m, width), as a view."""
        if self.groups == 1:
            return x[:, self.low : self.low + self.keys]
        return self._groups(x, 0, self.keys)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Adds y (groups, keys, width) to the keys of x (batch, m, width); groups may share keys."""
        if self.groups == 1:
            x[:, self.low : self.low + self.keys] += y
            return
        for part in range(0, self.keys, self.rows):  # parts that do not overlap between groups
            size = min(self.rows, self.keys - part)
            self._groups(x, part, size).add_(y[:, part : part + size])

    def _groups(self, x: Tensor, start: int, size: int) -> Tensor:
        """A part of the keys of every group: (groups, size, width)."""
        step, last = x.stride()[1:]
        place = x.storage_offset() + (self.low + start) * step
        return x.as_strided((self.groups, size, x.shape[2]), (self.rows * step, step, last), place)

    def shifted(self, p: Tensor) -> Tensor:
        """p (groups, rows, width) by distance as a view (groups, rows, keys) by key."""
        size, strides = (len(p), self.rows, self.keys), (self.rows * self.width, self.width - 1, 1)
        return p.as_strided(size, strides, p.storage_offset() + self.rows - 1)


def cut(n: int, m: int, offset: int, nearest: int, reach: int) -> Iterator[BandTile]:
    """The tiles of n queries, the first of them `offset` positions after the first of m keys, for distances nearest ... reach-1."""
    for first in range(0, n, QUERIES):
        stop = min(first + QUERIES, n)
        low, high = max(0, offset + first - reach + 1), min(m, offset + stop - nearest)
        if high > low:
            furthest, closest = offset + stop - 1 - low, offset + first - high + 1
            shown = slice(max(0, furthest - reach + 1), furthest - max(nearest, closest) + 1)
            yield BandTile(first, stop - first, low, high - low, furthest, shown)


def merge_alike(tiles: list[BandTile], most: int) -> list[BandTile]:
    """The tiles with consecutive ones of the same shape merged, up to `most` pairs each."""
    made: list[BandTile] = []
    for tile in tiles:
        last = made[-1] if made else None
        if last is not None and (last.groups + 1) * tile.rows * tile.width <= most:
            after = last.groups * last.rows
            if tile == last._replace(first=last.first + after, low=last.low + after, groups=1):
                made[-1] = last._replace(groups=last.groups + 1)
                continue
        made.append(tile)
    return made
