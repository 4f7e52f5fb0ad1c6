"""A pattern's plan as a few batches of equal units, for devices where every operation costs a kernel launch.

A unit is one group of a piece of the plan (patterns/plan.py): `size` queries and `keys` keys. The units of a round are put into at most
MOST batches; the units of a batch are padded to the largest of them, and padding is hidden. Batches are chosen so that they compute as
few pairs as possible.

If heads have different sets, the heads of a row are one long row of heads * n positions, and each unit belongs to one head. So a head is
no dimension of the indices, and heads may differ in any way. Else the same indices are used for every head.

Everything is computed on the host from integers, and copied to the device once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from formers.core.tables import cached
from formers.patterns import Pattern
from formers.patterns.plan import GroupedPositions, Mask, Numbers, Round, Where

MOST = 3
"""Batches per round, if none is larger than the limit."""
PADDING = 1.25
"""More batches are made as long as they compute more than this many times the pairs of the plan."""


class BatchedPiece(NamedTuple):
    """Units of the same shape."""

    units: int
    size: int
    """Queries per unit."""
    keys_each: int
    """Keys per unit."""
    queries: Tensor | None
    """(units * size,), the rows of the queries; the number of rows at padding. None: all in order."""
    keys: Tensor
    """(units * keys_each,), the rows of the keys; 0 at padding, which is hidden."""
    hidden: Tensor | None
    """(units or 1, size or 1, keys_each) bool, True at pairs that are not visible; None: all are visible."""


class BatchedPlan(NamedTuple):
    """A plan in batches."""

    rounds: tuple[tuple[BatchedPiece, ...], ...]
    rows: int
    """Positions that are indexed: n, or heads * n."""
    padded: bool
    """Whether any unit has padding in its queries."""


class _Groups(NamedTuple):
    """The groups of a piece as explicit rows."""

    queries: Numbers
    """(groups, size)."""
    keys: Numbers
    """(groups, keys); -1 at keys after the end of a row."""
    mask: Mask | None
    """(size, m), for the last m keys."""


@cached(128)
def batched_plan(pattern: Pattern, n: int, heads: int, width: int, limit: int, device: torch.device) -> BatchedPlan:
    """The plan of a pattern over n tokens in batches of at least one unit; heads is 1 if all share one plan.

    The scores of a batch, and its gathered keys of the given width, have at most `limit` elements.
    """
    rows = heads * n
    rounds: list[list[_Groups]] = []
    for head in range(heads):
        for order, part in enumerate(pattern.pieces(n, head)):
            if order == len(rounds):
                rounds.append([])
            rounds[order] += _groups(part, n, head * n, rows)
    batches = [[_Batch.of(alike, rows) for alike in _alike(groups)] for groups in rounds if groups]
    padded = any((batch.queries == rows).any() for part in batches for batch in part)
    with torch.inference_mode(False):  # tables first computed in evaluation are also used in training
        made = tuple(tuple(piece for batch in part for piece in batch.pieces(width, limit, rows + padded, device)) for part in batches)
    return BatchedPlan(made, rows, padded)


def _groups(part: Round, n: int, first: int, rows: int) -> Iterator[_Groups]:
    """The pieces of a round of the head whose rows begin at `first`."""
    among = None if part.among is None else _positions(part.among)[0]
    for piece in part.pieces:
        queries, keys = _positions(piece.queries), _positions(piece.keys)
        if among is not None:
            keys = among[keys]
        if keys.size and queries.size:
            yield _Groups(np.where(queries < n, queries + first, rows), np.where(keys < n, keys + first, -1), piece.mask)


def _positions(where: Where) -> Numbers:
    """The positions (groups, size) as numbers."""
    if isinstance(where, GroupedPositions):
        return where.start + where.step * np.arange(where.groups)[:, None] + where.stride * np.arange(where.size)
    return (where.blocks[:, :, None] * where.unit + np.arange(where.unit)).reshape(where.groups, -1)


def _alike(groups: list[_Groups]) -> Iterator[list[_Groups]]:
    """Splits pieces into batches of units of similar shape."""
    by_shape: dict[tuple[int, int], list[_Groups]] = defaultdict(list)
    for one in groups:
        by_shape[one.keys.shape[1], one.queries.shape[1]].append(one)
    shapes = sorted(by_shape)
    counts = np.array([sum(len(one.queries) for one in by_shape[shape]) for shape in shapes])
    for start, stop in pairwise(_edges(np.array(shapes), counts)):
        yield [one for shape in shapes[start:stop] for one in by_shape[shape]]


def _edges(shapes: Numbers, counts: Numbers) -> list[int]:
    """Where to split a list of shapes (keys, queries), sorted by keys, each with a number of units, so that few pairs are computed."""
    many, total = len(shapes), np.concatenate([[0], np.cumsum(counts)])
    cost = np.full((many, many), np.inf)  # cost[i, j]: the pairs of one batch of the shapes i ... j
    for j, keys in enumerate(shapes[:, 0]):
        largest = np.maximum.accumulate(shapes[j::-1, 1])[::-1]
        cost[: j + 1, j] = (total[j + 1] - total[: j + 1]) * largest * keys
    exact = (counts * shapes.prod(axis=1)).sum()
    best = cost[0]  # best[j]: the fewest pairs of the shapes 0 ... j, with one batch more in each step
    starts: list[Numbers] = []  # the first shape of the last batch, for each j
    while best[-1] > PADDING * exact and len(starts) + 1 < MOST:
        through = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        starts.append(through.argmin(axis=0))
        best = through.min(axis=0)
    edges = [many]
    for start in reversed(starts):
        edges.append(int(start[edges[-1] - 1]))
    return [0, *reversed(edges)]


class _Batch(NamedTuple):
    """A batch on the host: units of the same shape."""

    queries: Numbers
    keys: Numbers
    hidden: Mask

    @classmethod
    def of(cls, groups: list[_Groups], rows: int) -> _Batch:
        """The units of some pieces, padded to the largest, in the order of their first query."""
        units = sum(len(one.queries) for one in groups)
        size, most = (max(x.shape[1] for x in each) for each in zip(*((one.queries, one.keys) for one in groups), strict=True))
        queries, keys = np.full((units, size), rows), np.full((units, most), -1)
        masked = any(one.mask is not None for one in groups)
        hidden = np.zeros((units, size if masked else 1, most), dtype=bool)
        first = 0
        for one in groups:
            here, (count, a), b = slice(first, first + len(one.queries)), one.queries.shape, one.keys.shape[1]
            queries[here, :a], keys[here, :b] = one.queries, one.keys
            if one.mask is not None:
                hidden[here, :a, b - one.mask.shape[1] : b] = ~one.mask
            first += count
        hidden |= (keys < 0)[:, None, :]
        order = queries[:, 0].argsort(kind="stable")
        return cls(queries[order], keys[order].clip(min=0), hidden[order])

    def pieces(self, width: int, limit: int, rows: int, device: torch.device) -> Iterator[BatchedPiece]:
        """The batch on a device, split into pieces of equal size if it is above the limit; rows includes the row of padding."""
        (units, size), most = self.queries.shape, self.keys.shape[1]
        each = math.ceil(units / math.ceil(units / max(1, limit // (most * max(size, width)))))
        for first in range(0, units, each):
            here = slice(first, first + each)
            queries, keys, hidden = self.queries[here], self.keys[here], self.hidden[here]
            ordered = queries.size == rows and (queries.flatten() == np.arange(rows)).all()
            yield BatchedPiece(
                len(queries),
                size,
                most,
                None if ordered else torch.as_tensor(queries.flatten(), device=device),
                torch.as_tensor(keys.flatten(), device=device),
                None if not hidden.any() else torch.as_tensor(_smallest(hidden).copy(), device=device),
            )


def _smallest(hidden: Mask) -> Mask:
    """A mask with a dimension of 1 for units, or queries, that are all alike."""
    if (hidden == hidden[:, :1]).all():
        hidden = hidden[:, :1]
    return hidden[:1] if (hidden == hidden[:1]).all() else hidden
