"""A plan: a pattern split into pieces, each of which is a batch of small dense attentions.

A piece has groups of queries and the same number of groups of keys; a query sees those keys of its group that the piece's small mask
allows. Pieces are disjoint, and their union is exactly the pattern. So attention is computed without an n x n matrix, and the results of
pieces are merged by their log-sum-exp. A round is a set of pieces that share no query; each further round needs one merge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

GROUP = 64
"""Queries per group: with more, more masked pairs are computed; with fewer, matrix products are slow."""
CHUNK = 256
"""Queries per piece that share the summaries of earlier blocks."""
ROUND = 16
"""The width of bands is rounded up to a multiple of this: matrices of odd widths are slow."""
BLOCK = 64
"""The block size for scanning a pattern that does not define its plan."""


class GroupedPositions(NamedTuple):
    """Positions (groups, size): start + step * group + stride * element."""

    start: int
    groups: int
    size: int
    step: int
    stride: int = 1

    @property
    def apart(self) -> int:
        """The number of elements of a group that do not overlap with other groups; all if groups do not overlap."""
        if self.groups <= 1 or self.stride >= self.groups * self.step:
            return self.size
        return min(self.size, max(1, self.step // self.stride))

    def part(self, first: int, count: int) -> GroupedPositions:
        """The positions of `count` groups, beginning with `first`."""
        return self._replace(start=self.start + first * self.step, groups=count)

    def elements(self, first: int, count: int) -> GroupedPositions:
        """The positions of `count` elements of every group, beginning with `first`."""
        return self._replace(start=self.start + first * self.stride, size=count)


class SelectedPositions(NamedTuple):
    """Positions (groups, chosen * unit): for each group, the indices of some blocks of `unit` positions."""

    blocks: Numbers
    """(groups, chosen)."""
    unit: int

    @property
    def groups(self) -> int:
        return self.blocks.shape[0]

    @property
    def size(self) -> int:
        """Positions per group."""
        return self.blocks.shape[1] * self.unit

    def part(self, first: int, count: int) -> SelectedPositions:
        """The positions of `count` groups, beginning with `first`."""
        return self._replace(blocks=self.blocks[first : first + count])


Where = GroupedPositions | SelectedPositions


class Piece(NamedTuple):
    """Groups of queries and the same number of groups of keys."""

    queries: Where
    keys: Where
    mask: Mask | None = None
    """(queries, m) bool, True = may see, for the last m keys of every group; earlier keys, or all without a mask, are not masked."""

    @property
    def pairs(self) -> int:
        """Number of computed pairs, allowed or not."""
        return self.queries.groups * self.queries.size * self.keys.size


class Round(NamedTuple):
    """Pieces that share no query."""

    pieces: tuple[Piece, ...]
    among: SelectedPositions | None = None
    """One group of keys that is gathered first; the pieces then index the gathered keys. None: pieces index all keys."""
    by_keys: tuple[Piece, ...] | None = None
    """The same pairs in pieces whose keys do not overlap, for the backward pass, which then adds less. None: use `pieces`."""


Plan = tuple[Round, ...]


def pairs(plan: Plan) -> int:
    """The number of pairs that a plan computes."""
    return sum(piece.pairs for part in plan for piece in part.pieces)


def square(queries: GroupedPositions, keys: GroupedPositions) -> list[Piece]:
    """Pieces in which each query sees one key more than the one before it, and the last sees all; split into GROUP queries each."""
    pieces, before = [], keys.size - queries.size
    for first in range(0, queries.size if queries.groups else 0, GROUP):
        size = min(GROUP, queries.size - first)
        pieces.append(Piece(queries.elements(first, size), keys.elements(0, before + first + size), np.tri(size, dtype=bool)))
    return pieces


def band(n: int, before: int, after: int = 0, own: bool = True) -> Round:
    """The keys i-before ... i+after of each of n queries i, including itself only if `own`."""
    turned = _band(n, after, before, own)  # by keys: key j is seen by the queries j-after ... j+before
    by_keys = tuple(Piece(p.keys, p.queries, None if p.mask is None else p.mask.T) for p in turned)
    return Round(tuple(_band(n, before, after, own)), by_keys=by_keys)


def _band(n: int, before: int, after: int, own: bool) -> list[Piece]:
    """Groups of GROUP queries that see a band of keys: one piece for all whose band is complete, one per group at the edges."""
    left, right = (math.ceil(reach / ROUND) * ROUND for reach in (before, after))
    inside: list[int] = []
    pieces = []

    def piece(start: int, groups: int, size: int) -> Piece:
        first, last = max(0, start - left), min(n, start + size + right)
        offset = np.arange(first, last)[None, :] - np.arange(start, start + size)[:, None]
        mask = (offset >= -before) & (offset <= after) & (own | (offset != 0))
        return Piece(GroupedPositions(start, groups, size, GROUP), GroupedPositions(first, groups, last - first, GROUP), mask)

    for start in range(0, n, GROUP):
        size = min(GROUP, n - start)
        if size == GROUP and start >= left and start + size + right <= n:
            inside.append(start)
        else:
            pieces.append(piece(start, 1, size))
    return [*pieces, piece(inside[0], len(inside), GROUP)] if inside else pieces


def columns(n: int, stride: int, own: bool = False) -> Round:
    """The keys at multiples of `stride` before each of n queries, including itself only if `own`."""
    rows, rest = divmod(n, stride)
    pieces = []
    skip = 0 if own else 1  # without self, row t of a column sees rows 0 ... t-1: a square one row lower
    for first, groups, size in ((0, rest, rows + 1 - skip), (rest, stride - rest, rows - skip)):
        if groups and size > 0:
            keys = GroupedPositions(first, groups, size, 1, stride)
            pieces += square(keys._replace(start=skip * stride + first), keys)
    return Round(tuple(pieces))


def own_blocks(n: int, size: int, memory: int = 0) -> Round:
    """Blocks of `size`, each of which sees itself causally, and the `memory` positions before it; the last one may be smaller."""
    whole, rest = divmod(n, size)
    edge = min(whole, math.ceil(memory / size))  # blocks with fewer than `memory` positions before them
    blocks = [GroupedPositions(block * size, 1, size, size) for block in range(edge)]
    blocks += [GroupedPositions(edge * size, whole - edge, size, size), GroupedPositions(whole * size, 1, rest, size)]
    pieces = []
    for block in blocks:
        before = min(memory, block.start)
        pieces += square(block, GroupedPositions(block.start - before, block.groups, before + block.size, size))
    return Round(tuple(pieces))


def summaries(n: int, stride: int, summary: int, end: int) -> Plan:
    """The `summary` cells before cell `end` of every block of `stride` before the query's block, in chunks of queries."""
    unit, blocks = math.gcd(stride, summary, end), math.ceil(n / stride)
    each = max(1, CHUNK // stride)
    cells = np.arange(summary // unit) + (end - summary) // unit
    among = ((np.arange(blocks - 1) * (stride // unit))[:, None] + cells).reshape(1, -1)
    pieces = []
    for chunk in range(0, blocks, each):
        start, stop = chunk * stride, min((chunk + each) * stride, n)
        inside = math.ceil((stop - start) / stride) - 1  # blocks of the chunk before its last block
        if chunk + inside:
            own = np.arange(stop - start) // stride
            mask = own[:, None] > (np.arange(inside * summary) // summary)[None, :]
            keys = GroupedPositions(0, 1, (chunk + inside) * summary, n)
            pieces.append(Piece(GroupedPositions(start, 1, stop - start, n), keys, mask if inside else None))
    return (Round(tuple(pieces), SelectedPositions(among, unit)),) if pieces else ()


def rectangle(queries: range, keys: range) -> tuple[Piece, ...]:
    """Queries that all see the same keys, in chunks of queries."""
    if not len(keys):
        return ()
    where, starts = GroupedPositions(keys.start, 1, len(keys), len(keys)), range(queries.start, queries.stop, CHUNK)
    return tuple(Piece(GroupedPositions(i, 1, min(CHUNK, queries.stop - i), CHUNK), where) for i in starts)


def of_blocks(seen: Iterable[tuple[int, Numbers]], n: int, size: int, first: int = 0) -> Round:
    """The pairs of a pattern that is uniform in blocks of `size` positions; `seen` lists the sorted key blocks of each query block.

    Pairs with one of the `first` positions are left out.
    """
    found: dict[tuple[int, bytes], list[tuple[int, Numbers]]] = defaultdict(list)
    pieces: list[Piece] = []

    def real(blocks: Numbers) -> Mask:
        there = (blocks[:, None] * size + np.arange(size)).flatten()
        return (there >= first) & (there < n)

    for block, some in seen:
        rows, some = real(np.array([block])), some[(some + 1) * size > first]
        columns = real(some)
        if not rows.any() or not columns.any():
            continue
        if len(some) == some[-1] + 1 - some[0]:  # contiguous, as for global blocks
            here, there = (max(first, int(c) * size) for c in (block, some[0]))
            pieces += rectangle(range(here, min(n, (block + 1) * size)), range(there, min(n, int(some[-1] + 1) * size)))
        else:
            mask = np.outer(rows, columns)
            found[len(some), b"" if mask.all() else mask.tobytes()].append((block, some))
    return Round((*pieces, *_alike(found, size)))


def _alike(found: dict[tuple[int, bytes], list[tuple[int, Numbers]]], size: int) -> Iterator[Piece]:
    """One piece for all query blocks with the same number of key blocks and the same mask (as bytes)."""
    for (_, mask), rows in found.items():
        queries, keys = (
            SelectedPositions(np.array([[block] for block, _ in rows]), size),
            SelectedPositions(np.stack([seen for _, seen in rows]), size),
        )
        yield Piece(queries, keys, np.frombuffer(mask, dtype=bool).reshape(size, -1).copy() if mask else None)


def scan(allows: Callable[[Tensor, Tensor], Tensor], n: int) -> Plan:
    """The plan of any pattern: its blocks with an allowed pair, found by evaluating `allows` for all pairs, one row of blocks at a time."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    size = min(BLOCK, n)
    count = math.ceil(n / size)
    found: dict[tuple[int, bytes], list[tuple[int, Numbers]]] = defaultdict(list)
    with unset_fake_temporarily():  # fake tensors have no values, and the pattern depends on values
        here = torch.arange(count * size)
        for block in range(count):
            i = here[block * size : (block + 1) * size]
            seen = torch.as_tensor(allows(i[:, None], here[None, :])).expand(size, len(here)) & (i < n)[:, None] & (here < n)
            by_block = seen.numpy().reshape(size, count, size)
            whole = by_block.all(axis=(0, 2))
            partly = by_block.any(axis=(0, 2)) & ~whole
            if whole.any() or partly.any():
                seen_blocks = np.concatenate([whole.nonzero()[0], partly.nonzero()[0]])  # unmasked blocks first: the mask is for the others
                found[len(seen_blocks), by_block[:, partly].tobytes()].append((block, seen_blocks))
    return (Round(tuple(_alike(found, size))),)
