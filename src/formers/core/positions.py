"""Absolute token positions, described by plain integers if they are contiguous or regularly strided.

Executors are chosen by the class (`Range`, `StridedPositions` or `ExplicitPositions`) and by integers, never by reading a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core.serialise import serialisable

EMPTY = -1
"""The position of an empty slot (no token): every pattern masks it."""


@serialisable
@dataclass(frozen=True)
class Range:
    """Positions start, start+1, ..., start+length-1, the same for every row of the batch."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        """The first position after the last one."""
        return self.start + self.length

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,)."""
        return torch.arange(self.start, self.start + self.length, device=device)


@serialisable
@dataclass(frozen=True)
class StridedPositions:
    """Strided positions, the same for every row: `count` blocks of `width` contiguous positions, the first at `start` and one every
    `period`; then the contiguous positions `near`, after all blocks.
    """

    start: int
    width: int
    period: int
    count: int
    near: Range

    @property
    def far(self) -> int:
        """The number of positions in the blocks."""
        return self.count * self.width

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.far + self.near.length

    @property
    def stop(self) -> int:
        """The position of the next token."""
        return self.near.stop

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,)."""
        first = torch.arange(self.count, device=device) * self.period + self.start
        blocks = first[:, None] + torch.arange(self.width, device=device)
        return torch.cat([blocks.flatten(), self.near.tensor(device)])


@serialisable
@dataclass(frozen=True, eq=False)
class ExplicitPositions:
    """Positions as a tensor (length,) or (batch, length), -1 at empty slots; all are below `stop`.

    The positions of a row are contiguous, except in the subclass `SubsetPositions`.
    """

    index: Tensor
    stop: int

    @property
    def length(self) -> int:
        """The number of slots in a row."""
        return self.index.shape[-1]

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,) or (batch, length)."""
        return self.index if device is None else self.index.to(device)


@serialisable
@dataclass(frozen=True, eq=False)
class SubsetPositions(ExplicitPositions):
    """Explicit positions that may have gaps."""


StaticPositions = Range | StridedPositions
"""Positions that are the same for every row and described by plain integers."""
Positions = Range | StridedPositions | ExplicitPositions


def join(first: Positions, second: Positions, batch: int) -> Positions:
    """The positions of two concatenated token sequences."""
    if type(first) is type(second) is Range and first.start + first.length == second.start:  # at every layer of every decoding step
        return Range(first.start, first.length + second.length)
    if isinstance(second, Range) and not isinstance(first, ExplicitPositions) and first.stop == second.start:
        if isinstance(first, Range):
            return Range(first.start, first.length + second.length)
        return StridedPositions(
            first.start, first.width, first.period, first.count, Range(first.near.start, first.near.length + second.length)
        )
    device = next((p.index.device for p in (first, second) if isinstance(p, ExplicitPositions)), None)
    rows = [p.tensor(device).expand(batch, -1) for p in (first, second)]
    return explicit_positions(torch.cat(rows, dim=1), max(first.stop, second.stop), first, second)


def explicit_positions(index: Tensor, stop: int, *made_of: Positions) -> ExplicitPositions:
    """Explicit positions computed from others: `SubsetPositions` if one of those has gaps."""
    return (SubsetPositions if any(isinstance(p, (StridedPositions, SubsetPositions)) for p in made_of) else ExplicitPositions)(index, stop)


def distances(queries: Positions, keys: Positions) -> int:
    """The number of distances 0, 1, ... from a query back to a key; no key is further back."""
    if isinstance(keys, (Range, StridedPositions)):
        return queries.stop - keys.start
    return queries.stop if isinstance(keys, SubsetPositions) else min(queries.stop, keys.length)


def distances_ahead(queries: Positions, keys: Positions) -> int:
    """The number of distances 0, 1, ... from a query forward to a key; no key is further ahead."""
    return keys.stop - (0 if isinstance(queries, ExplicitPositions) else queries.start)


def last_positions(positions: Positions, n: int, like: Tensor) -> Positions:
    """The last n positions, for the batch size and device of `like` (batch first)."""
    if isinstance(positions, Range):
        return Range(positions.stop - n, n)
    index = positions.tensor(like.device).expand(len(like), -1)
    return explicit_positions(index[:, index.shape[1] - n :], positions.stop, positions)


def strided_positions(start: int, width: int, period: int, near: Range) -> StaticPositions:
    """Blocks of `width` positions, the first at `start` and one every `period`, as many as begin before `near`; then `near`.

    A last block that overlaps or touches `near` is merged into it. Without gaps, or without blocks, the result is a range.
    """
    if near.start <= start:
        return near
    if width >= period:
        return Range(start, near.stop - start)
    count = (near.start - start + period - 1) // period
    last = start + (count - 1) * period
    if last + width >= near.start:  # the last block is merged into `near`
        near, count = Range(last, near.stop - last), count - 1
    return StridedPositions(start, width, period, count, near) if count else near


def union(first: StaticPositions, second: StaticPositions) -> StaticPositions:
    """Positions that contain both, which have the same stop: the exact union if their strides match, else a superset."""
    stop = max(first.stop, second.stop)
    near = min(p.start if isinstance(p, Range) else p.near.start for p in (first, second))
    strided = [p for p in (first, second) if isinstance(p, StridedPositions)]
    if not strided:
        return Range(near, stop - near)
    start, end = min(p.start for p in strided), max(p.start + p.width for p in strided)
    if strided[0].period != strided[-1].period:
        return Range(min(start, near), stop - min(start, near))
    # Each block contains a block of both.
    return strided_positions(start, end - start, strided[0].period, Range(near, stop - near))


class Slices(NamedTuple):
    """Indices into a cache, `number` runs of `width` contiguous indices: the first run at `start`, and one every `period`."""

    start: int
    number: int
    width: int
    period: int

    @property
    def length(self) -> int:
        """The number of indices."""
        return self.number * self.width


def find_slices(held: StaticPositions, wanted: StaticPositions) -> tuple[Slices, ...] | None:
    """The indices of the wanted positions among the held ones, in order; None if one is missing or a few slices cannot express them."""
    far, near = (0, held) if isinstance(held, Range) else (held.far, held.near)
    if isinstance(wanted, Range):
        inside = near.start <= wanted.start and wanted.stop <= near.stop
        return (Slices(far + wanted.start - near.start, 1, wanted.length, wanted.length),) if inside else None
    tail = find_slices(held, wanted.near)
    if tail is None:
        return None
    first, found = wanted.start, []
    if isinstance(held, StridedPositions) and first < near.start:
        skipped, rest = divmod(first - held.start, held.period)
        if rest or skipped < 0 or (wanted.width, wanted.period) != (held.width, held.period):
            return None
        whole = min(held.count - skipped, wanted.count)
        found.append(Slices(skipped * held.width, 1, whole * held.width, whole * held.width))
        first += whole * held.period
    count = (wanted.start + wanted.count * wanted.period - first) // wanted.period
    if count:
        if first < near.start:
            return None
        found.append(Slices(far + first - near.start, count, wanted.width, wanted.period))
    return (*found, *tail)


def take_slices(x: Tensor, where: tuple[Slices, ...], dim: int) -> Tensor:
    """x at the indices of some slices along a dimension, concatenated: a view if it is one contiguous slice, else a copy."""
    parts = [_slice(x, piece, dim) for piece in where if piece.length]
    if len(parts) > 1:
        return torch.cat(parts, dim=dim)
    return parts[0] if parts else x.narrow(dim, 0, 0)


def _slice(x: Tensor, piece: Slices, dim: int) -> Tensor:
    start, number, width, period = piece
    span = x.narrow(dim, start, (number - 1) * period + width)
    if number == 1:
        return span
    runs = span.unfold(dim, width, period)  # (..., number, ..., width), a view
    return runs.select(-1, 0) if width == 1 else runs.movedim(-1, dim + 1).flatten(dim, dim + 1)
