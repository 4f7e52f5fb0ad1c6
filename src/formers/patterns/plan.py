"""A pattern cut into pieces, each of which is a few dense attentions side by side.

A piece takes groups of queries and as many groups of keys; a query sees those keys of its group that the piece's small mask allows.
Pieces are disjoint, and together they are exactly the pattern, so that attention is computed without an n x n matrix and merged by the
logarithms of the sums of exponentials. A round is a set of pieces that share no query; each further round costs a merge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

GROUP = 128
"""How many queries of a band are taken together: more would see more keys that are not theirs, fewer would waste the kernel."""
CHUNK = 1024
"""How many queries share the keys of far blocks."""
BLOCK = 64
"""The block in which a pattern that has no plan of its own is scanned."""


class Grid(NamedTuple):
    """Positions (groups, size): start + step * group + stride * element."""

    start: int
    groups: int
    size: int
    step: int
    stride: int = 1

    @property
    def overlap(self) -> bool:
        """Whether a position may stand in two groups."""
        apart = self.step >= self.size * self.stride or self.stride >= self.groups * self.step
        return self.groups > 1 and not apart

    def part(self, first: int, count: int) -> Grid:
        """The positions of some of its groups."""
        return self._replace(start=self.start + first * self.step, groups=count)


class Chosen(NamedTuple):
    """Positions (groups, chosen * unit): for each group some blocks of `unit` positions, by number."""

    blocks: Numbers
    """(groups, chosen)."""
    unit: int

    @property
    def groups(self) -> int:
        return self.blocks.shape[0]

    @property
    def size(self) -> int:
        """How many positions a group has."""
        return self.blocks.shape[1] * self.unit

    def part(self, first: int, count: int) -> Chosen:
        """The positions of some of its groups."""
        return self._replace(blocks=self.blocks[first : first + count])


Where = Grid | Chosen


class Piece(NamedTuple):
    """Groups of queries over groups of keys, as many of one as of the other."""

    queries: Where
    keys: Where
    mask: Mask | None = None
    """(queries, keys) or (groups, queries, keys) bool, True = may see; None where a group is open, or `causal` says it."""
    causal: bool = False
    """Whether query number e of a group sees keys 0 ... e of it; as many keys as queries then."""

    @property
    def pairs(self) -> int:
        """How many pairs are computed, whether they are allowed or not."""
        return self.queries.groups * self.queries.size * self.keys.size

    def portion(self, first: int, count: int) -> Piece:
        """Some of its groups, as a piece of their own."""
        mask = self.mask if self.mask is None or self.mask.ndim == 2 else self.mask[first : first + count]
        return self._replace(queries=self.queries.part(first, count), keys=self.keys.part(first, count), mask=mask)


Round = tuple[Piece, ...]
Plan = tuple[Round, ...]


def square(start: int, groups: int, size: int) -> list[Piece]:
    """Blocks of `size` positions, each of which sees itself causally."""
    where = Grid(start, groups, size, size)
    return [Piece(where, where, causal=True)] if groups and size else []


def band(n: int, window: int) -> Round:
    """The last `window` keys, self among them, of n queries."""
    head = min(window, n)
    pieces = square(0, 1, head)
    whole, rest = divmod(n - head, GROUP)
    for start, groups, size in ((head, whole, GROUP), (head + whole * GROUP, 1, rest)):
        if groups and size:
            # Query e of a group that begins at s sees keys s+e-window+1 ... s+e; the group's keys begin at s-window.
            back = np.arange(size)[:, None] + window - np.arange(size + window)[None, :]
            keys = Grid(start - window, groups, size + window, GROUP)
            pieces.append(Piece(Grid(start, groups, size, GROUP), keys, (back >= 0) & (back < window)))
    return tuple(pieces)


def columns(n: int, stride: int, own: bool = False) -> Round:
    """The keys a multiple of `stride` back, self among them only if `own`, of n queries."""
    rows, rest = divmod(n, stride)
    pieces = []
    skip = 0 if own else 1  # without self, row t of a column sees rows 0 ... t-1: a square one row lower
    for first, groups, size in ((0, rest, rows + 1 - skip), (rest, stride - rest, rows - skip)):
        if groups and size > 0:
            queries = Grid(skip * stride + first, groups, size, 1, stride)
            pieces.append(Piece(queries, Grid(first, groups, size, 1, stride), causal=True))
    return tuple(pieces)


def own_blocks(n: int, size: int) -> Round:
    """Blocks of `size`, each of which sees itself causally; the last one may be smaller."""
    whole, rest = divmod(n, size)
    return (*square(0, whole, size), *square(whole * size, 1, rest))


def summaries(n: int, stride: int, summary: int, skip: int = 0) -> Plan:
    """The last `summary` cells of every block of `stride` before a query's own, but for the `skip` * `summary` behind them.

    Far blocks are seen by chunks of queries, near ones inside a chunk.
    """
    unit, blocks = math.gcd(stride, summary), math.ceil(n / stride)
    each = max(1, CHUNK // stride)
    cells = np.arange(summary // unit) + (stride - (skip + 1) * summary) // unit

    def of(first: int, count: int) -> Numbers:
        """The units (count * summary / unit,) of the summaries of some blocks."""
        return ((np.arange(first, first + count) * (stride // unit))[:, None] + cells).flatten()

    far, near = [], []
    for chunk in range(0, blocks, each):
        start, stop = chunk * stride, min((chunk + each) * stride, n)
        queries = Grid(start, 1, stop - start, stop - start)
        if chunk:
            far.append(Piece(queries, Chosen(of(0, chunk)[None], unit)))
        inside = math.ceil((stop - start) / stride) - 1
        if inside:
            own = np.arange(stop - start) // stride
            mask = own[:, None] > (np.arange(inside * summary) // summary)[None, :]
            near.append(Piece(queries, Chosen(of(chunk, inside)[None], unit), mask))
    return tuple(tuple(pieces) for pieces in (far, near) if pieces)


def scan(allows: Callable[[Tensor, Tensor], Tensor], n: int) -> Plan:
    """The plan of any pattern: its blocks that hold an allowed pair, found by asking for all pairs, a row of blocks at a time."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    size = min(BLOCK, n)
    count = math.ceil(n / size)
    found: dict[tuple[int, bool], list[tuple[int, Numbers, Mask]]] = defaultdict(list)
    with unset_fake_temporarily():  # who may see whom is a matter of numbers, which fake tensors have none of
        here = torch.arange(count * size)
        for block in range(count):
            i = here[block * size : (block + 1) * size]
            seen = torch.as_tensor(allows(i[:, None], here[None, :])).expand(size, len(here)) & (i < n)[:, None] & (here < n)
            by_block = seen.numpy().reshape(size, count, size)
            some = by_block.any(axis=(0, 2)).nonzero()[0]
            if len(some):
                mask = by_block[:, some].reshape(size, -1)
                found[len(some), bool(mask.all())].append((block, some, mask))
    pieces = []
    for (_, whole), rows in found.items():
        queries = Chosen(np.array([[block] for block, _, _ in rows]), size)
        keys = Chosen(np.stack([some for _, some, _ in rows]), size)
        pieces.append(Piece(queries, keys, None if whole else np.stack([mask for _, _, mask in rows])))
    return (tuple(pieces),)
