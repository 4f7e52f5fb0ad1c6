"""Where tokens stand: absolute integer positions, as plain integers where they are contiguous or have regular gaps.

Which executor runs is decided by the type (`Range`, `Comb` or `Index`) and by integers, never by looking into a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core.stored import stored

EMPTY = -1
"""The position of a place where no token stands: no pattern lets it be seen."""


@stored
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


@stored
@dataclass(frozen=True)
class Comb:
    """Positions with regular gaps, the same for every row: `count` teeth, each of them `width` positions, the first at `start` and one
    every `period`; then those of `near`, side by side, behind all teeth.
    """

    start: int
    width: int
    period: int
    count: int
    near: Range

    @property
    def far(self) -> int:
        """How many positions the teeth hold."""
        return self.count * self.width

    @property
    def length(self) -> int:
        """How many places there are in a row."""
        return self.far + self.near.length

    @property
    def stop(self) -> int:
        """Where the next token stands, however far the last one is back."""
        return self.near.stop

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,)."""
        first = torch.arange(self.count, device=device) * self.period + self.start
        teeth = first[:, None] + torch.arange(self.width, device=device)
        return torch.cat([teeth.flatten(), self.near.tensor(device)])


@stored
@dataclass(frozen=True, eq=False)
class Index:
    """Positions one by one, (length,) or (batch, length), -1 where no token stands; none reaches `stop`.

    Tokens of a row stand side by side, unless it is a `Scattered`.
    """

    index: Tensor
    stop: int

    @property
    def length(self) -> int:
        """How many places there are in a row."""
        return self.index.shape[-1]

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,) or (batch, length)."""
        return self.index if device is None else self.index.to(device)


@stored
@dataclass(frozen=True, eq=False)
class Scattered(Index):
    """Positions one by one, between which there may be gaps."""


Known = Range | Comb
"""Positions that are the same for every row and known as plain integers."""
Positions = Range | Comb | Index


def join(first: Positions, second: Positions, batch: int) -> Positions:
    """The positions of two stretches of tokens, one behind the other."""
    if isinstance(second, Range) and not isinstance(first, Index) and first.stop == second.start:
        if isinstance(first, Range):
            return Range(first.start, first.length + second.length)
        return Comb(first.start, first.width, first.period, first.count, Range(first.near.start, first.near.length + second.length))
    device = next((p.index.device for p in (first, second) if isinstance(p, Index)), None)
    rows = [p.tensor(device).expand(batch, -1) for p in (first, second)]
    return one_by_one(torch.cat(rows, dim=1), max(first.stop, second.stop), first, second)


def one_by_one(index: Tensor, stop: int, *made_of: Positions) -> Index:
    """Positions one by one, made of others: scattered if one of these has gaps."""
    return (Scattered if any(isinstance(p, (Comb, Scattered)) for p in made_of) else Index)(index, stop)


def distances(queries: Positions, keys: Positions) -> int:
    """How many distances there are from a query back to a key, 0, 1, ...: no key stands further back."""
    if isinstance(keys, (Range, Comb)):
        return queries.stop - keys.start
    return queries.stop if isinstance(keys, Scattered) else min(queries.stop, keys.length)


def distances_ahead(queries: Positions, keys: Positions) -> int:
    """How many distances there are from a query on to a key, 0, 1, ...: no key stands further ahead."""
    return keys.stop - (0 if isinstance(queries, Index) else queries.start)


def behind(positions: Positions, n: int, like: Tensor) -> Positions:
    """The last n positions of the rows of `like`, batch first."""
    if isinstance(positions, Range):
        return Range(positions.stop - n, n)
    index = positions.tensor(like.device).expand(len(like), -1)
    return one_by_one(index[:, index.shape[1] - n :], positions.stop, positions)


def comb(start: int, width: int, period: int, near: Range) -> Known:
    """Teeth of `width` from `start` on, one every `period`, as many as stand before `near`, and `near`.

    A tooth that reaches into `near` is cut off there. Where teeth leave no gap, or there are none, positions are a range.
    """
    if near.start <= start:
        return near
    if width >= period:
        return Range(start, near.stop - start)
    count = (near.start - start + period - 1) // period
    last = start + (count - 1) * period
    if last + width >= near.start:  # the last tooth joins what is near
        near, count = Range(last, near.stop - last), count - 1
    return Comb(start, width, period, count, near) if count else near


def union(first: Known, second: Known) -> Known:
    """Positions that hold those of both, which end alike: exactly theirs where their gaps fit together, else more."""
    stop = max(first.stop, second.stop)
    near = min(p.start if isinstance(p, Range) else p.near.start for p in (first, second))
    combs = [p for p in (first, second) if isinstance(p, Comb)]
    if not combs:
        return Range(near, stop - near)
    start, end = min(p.start for p in combs), max(p.start + p.width for p in combs)
    if combs[0].period != combs[-1].period:
        return Range(min(start, near), stop - min(start, near))
    # One tooth holds a tooth of each.
    return comb(start, end - start, combs[0].period, Range(near, stop - near))


class Slices(NamedTuple):
    """Places (number, width) among those that are held: the first at `start`, `width` side by side, and so on every `period`."""

    start: int
    number: int
    width: int
    period: int

    @property
    def length(self) -> int:
        """How many places there are."""
        return self.number * self.width


def places(held: Known, wanted: Known) -> tuple[Slices, ...] | None:
    """Where the wanted positions stand among those that are held, in order; None unless all are there and a few slices name them."""
    far, near = (0, held) if isinstance(held, Range) else (held.far, held.near)
    if isinstance(wanted, Range):
        inside = near.start <= wanted.start and wanted.stop <= near.stop
        return (Slices(far + wanted.start - near.start, 1, wanted.length, wanted.length),) if inside else None
    tail = places(held, wanted.near)
    if tail is None:
        return None
    first, found = wanted.start, []
    if isinstance(held, Comb) and first < near.start:
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


def take(x: Tensor, where: tuple[Slices, ...], dim: int) -> Tensor:
    """What stands at some places of x along a dimension, side by side; of one slice without gaps a view, else a copy."""
    parts = [_slice(x, piece, dim) for piece in where if piece.length]
    if len(parts) > 1:
        return torch.cat(parts, dim=dim)
    return parts[0] if parts else x.narrow(dim, 0, 0)


def _slice(x: Tensor, piece: Slices, dim: int) -> Tensor:
    start, number, width, period = piece
    span = x.narrow(dim, start, (number - 1) * period + width)
    if number == 1:
        return span
    teeth = span.unfold(dim, width, period)  # (..., number, ..., width), a view
    return teeth.select(-1, 0) if width == 1 else teeth.movedim(-1, dim + 1).flatten(dim, dim + 1)
