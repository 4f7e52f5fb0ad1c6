"""A pattern is one predicate over integer positions: may query i see key j?

The same value makes the dense mask, the fast plan, the trimming of a decoding cache and the picture. Positions are absolute and
never negative; arguments are Python integers or tensors that broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import TypeVar

import torch
from pydantic import model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Range, Slot, StridedPositions
from formers.core.compiler import concrete
from formers.core.positions import StaticPositions, union
from formers.patterns.plan import Plan, Round, scan

Integer = TypeVar("Integer", int, Tensor)
FAR = (1 << 61) - 1
"""A position beyond every window and block; a prime, so that no block ends there."""


class Pattern(Slot):
    """A set S_i of keys for every query position i."""

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a key behind it, at any position."""
        return False

    @property
    def by_head(self) -> bool:
        """Whether heads differ."""
        return False

    @property
    def heads(self) -> int | None:
        """How many heads it is for; None for any number."""
        return None

    @property
    def by_length(self) -> bool:
        """Whether the sets depend on where a row ends, and nobody has said yet where: then `of` or `allows_in` must be asked."""
        return False

    @property
    def room(self) -> int | None:
        """How many positions a row has at the most: `of` refuses longer ones. None where any length will do."""
        return None

    @property
    def grain(self) -> int:
        """Positions of an aligned block of so many see, and are seen, alike; 1 where nothing is known."""
        return 1

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        """Whether j is in S_i: the truth that everything else is derived from."""
        raise TypeError(f"{type(self).__name__} does not say whom it allows: define allows(i, j, head).")

    def allows_in(self, i: Integer, j: Integer, head: int | Tensor, length: int | Tensor) -> bool | Tensor:
        """`of(length).allows(i, j, head)`, also for rows of different lengths: then `length` is a tensor that broadcasts."""
        return self.allows(i, j, head)

    def at(self, layer: int) -> Pattern:
        """The pattern of one layer."""
        return self

    def of(self, length: int) -> Pattern:
        """The pattern of a row of `length` tokens; itself where the sets do not depend on where a row ends."""
        return self

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        """Whether a query at position t or later may still look at the key at `position`."""
        return position >= self.oldest(t)

    @property
    def reach(self) -> int | None:
        """How many places back a query may look at the most, wherever it stands; None where nothing bounds it."""
        return None

    def covers(self, queries: Range, keys: Range) -> bool:
        """Whether every query surely sees every key, decided on integers alone; False means "perhaps not"."""
        return False

    def oldest(self, t: int) -> int:
        """A position before which no key is kept for queries from t on: what a cache may forget at once."""
        return 0

    def covers_far(self, queries: Range, keys: StridedPositions) -> bool:
        """Whether every query surely sees all of the teeth of a comb, decided on integers alone; False means "perhaps not"."""
        return False

    def kept(self, t: int) -> StaticPositions:
        """The positions before t at which `keeps` is True, or a few more, as plain integers: what a decoding cache holds."""
        oldest = self.oldest(t)
        return Range(oldest, t - oldest)

    def reads(self, t: int) -> StaticPositions | None:
        """The positions that a query at t sees, or a few more, as plain integers; None where that is all that is kept, or unknown."""
        return None

    @property
    def gaps(self) -> bool:
        """Whether `kept` may leave out positions between those that it holds, at any t."""
        return isinstance(self.kept(FAR), StridedPositions)

    def pieces(self, n: int, head: int = 0) -> Plan:
        """The pattern over positions 0 ... n-1 as rounds of disjoint pieces, which together are exactly the pattern."""
        return _scanned(self, n, head)

    def unite(self, other: Pattern, n: int, head: int) -> Plan | None:
        """The plan of its union with another pattern; None where asking for all pairs is as good."""
        return None

    def behind(self, first: int, n: int, head: int) -> Round | None:
        """A round of its pairs without those of the `first` positions; None where asking for all pairs is as good."""
        return None

    def mask(self, length: int, heads: int = 1, layer: int = 0) -> Tensor:
        """The pattern as a boolean tensor (heads, length, length), True = may attend."""
        if length < 1 or heads < 1:
            raise FormersError(f"a mask of length={length}, heads={heads} is empty: both must be at least 1.")
        here = torch.arange(length)
        head = torch.arange(heads)[:, None, None]
        allowed = torch.as_tensor(self.at(layer).of(length).allows(here[:, None], here[None, :], head))
        return allowed.expand(heads, length, length).clone()

    def __or__(self, other: Pattern) -> Pattern:
        return Union(first=self, second=other)

    def __and__(self, other: Pattern) -> Pattern:
        return Intersection(first=self, second=other)


@lru_cache(maxsize=512)  # a model has one for every layer and head
def _scanned(pattern: Pattern, n: int, head: int) -> Plan:
    return scan(lambda i, j: torch.as_tensor(pattern.allows(i, j, head)), n)


@lru_cache(maxsize=64)
def _united(union: Union, n: int, head: int) -> Plan:
    first, second = union.first, union.second
    plan = first.unite(second, n, head) or second.unite(first, n, head)
    return _scanned(union, n, head) if plan is None else plan


class _Two(Pattern):
    """What a | b and a & b have in common."""

    first: Pattern
    second: Pattern

    @model_validator(mode="after")
    def _one_number_of_heads(self) -> Self:
        refuse_other_heads(self.first, self.second)
        return self

    @property
    def heads(self) -> int | None:
        return self.first.heads or self.second.heads

    @property
    def by_head(self) -> bool:
        return self.first.by_head or self.second.by_head

    @property
    def by_length(self) -> bool:
        return self.first.by_length or self.second.by_length

    @property
    def room(self) -> int | None:
        return least_room((self.first, self.second))

    @property
    def grain(self) -> int:
        return math.gcd(self.first.grain, self.second.grain)


class Union(_Two):
    """a | b: query i sees what a or b lets it see."""

    @property
    def is_causal(self) -> bool:
        return self.first.is_causal and self.second.is_causal

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.first.allows(i, j, head) | self.second.allows(i, j, head)

    def allows_in(self, i: Integer, j: Integer, head: int | Tensor, length: int | Tensor) -> bool | Tensor:
        return self.first.allows_in(i, j, head, length) | self.second.allows_in(i, j, head, length)

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _united(self, n, head)

    def at(self, layer: int) -> Pattern:
        return self.first.at(layer) | self.second.at(layer)

    def of(self, length: int) -> Pattern:
        first, second = self.first.of(length), self.second.of(length)
        return self if first is self.first and second is self.second else first | second

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        return self.first.keeps(position, t) | self.second.keeps(position, t)

    def covers(self, queries: Range, keys: Range) -> bool:
        return self.first.covers(queries, keys) or self.second.covers(queries, keys)

    def covers_far(self, queries: Range, keys: StridedPositions) -> bool:
        return self.first.covers_far(queries, keys) or self.second.covers_far(queries, keys)

    def kept(self, t: int) -> StaticPositions:
        return union(self.first.kept(t), self.second.kept(t))

    @property
    def gaps(self) -> bool:
        return gaps_of_all((self.first, self.second))

    def reads(self, t: int) -> StaticPositions | None:
        return all_read((self.first, self.second), t)

    def oldest(self, t: int) -> int:
        return min(self.first.oldest(t), self.second.oldest(t))

    @property
    def reach(self) -> int | None:
        first, second = self.first.reach, self.second.reach
        return None if first is None or second is None else max(first, second)


class Intersection(_Two):
    """a & b: query i sees what both a and b let it see."""

    @property
    def is_causal(self) -> bool:
        return self.first.is_causal or self.second.is_causal

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.first.allows(i, j, head) & self.second.allows(i, j, head)

    def allows_in(self, i: Integer, j: Integer, head: int | Tensor, length: int | Tensor) -> bool | Tensor:
        return self.first.allows_in(i, j, head, length) & self.second.allows_in(i, j, head, length)

    def at(self, layer: int) -> Pattern:
        return self.first.at(layer) & self.second.at(layer)

    def of(self, length: int) -> Pattern:
        first, second = self.first.of(length), self.second.of(length)
        return self if first is self.first and second is self.second else first & second

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        return self.first.keeps(position, t) & self.second.keeps(position, t)

    def covers(self, queries: Range, keys: Range) -> bool:
        return self.first.covers(queries, keys) and self.second.covers(queries, keys)

    def covers_far(self, queries: Range, keys: StridedPositions) -> bool:
        return self.first.covers_far(queries, keys) and self.second.covers_far(queries, keys)

    def kept(self, t: int) -> StaticPositions:
        return self._tighter(t)[0]

    @property
    def gaps(self) -> bool:
        return self.first.gaps or self.second.gaps  # which of the two `kept` follows depends on t

    def reads(self, t: int) -> StaticPositions | None:
        return self._tighter(t)[1]

    def _tighter(self, t: int) -> tuple[StaticPositions, StaticPositions | None]:
        """What the pattern that keeps less keeps and reads, from one of the two, so that what is read is kept."""
        one, other = ((pattern.kept(t), pattern.reads(t)) for pattern in (self.first, self.second))
        if one[0].length != other[0].length:
            return one if one[0].length < other[0].length else other
        return one if other[1] is None or (one[1] is not None and one[1].length <= other[1].length) else other

    def oldest(self, t: int) -> int:
        return max(self.first.oldest(t), self.second.oldest(t))

    @property
    def reach(self) -> int | None:
        return min((r for r in (self.first.reach, self.second.reach) if r is not None), default=None)


def all_read(patterns: Sequence[Pattern], t: int) -> StaticPositions | None:
    """The positions that a query at t sees by any of some patterns, or a few more; None as for one pattern."""
    known = [pattern.reads(t) for pattern in patterns]
    if all(reads is None for reads in known) or not all(pattern.is_causal for pattern in patterns):
        return None
    starts = [pattern.oldest(t) for pattern in patterns]
    return reduce(union, (Range(start, t + 1 - start) if reads is None else reads for start, reads in zip(starts, known, strict=True)))


def least_room(patterns: Sequence[Pattern]) -> int | None:
    """How many positions a row has at the most that some patterns all take."""
    return min((pattern.room for pattern in patterns if pattern.room is not None), default=None)


def gaps_of_all(patterns: Sequence[Pattern]) -> bool:
    """Whether what is kept for any of some patterns may have gaps: not where one of them keeps every position."""
    whole = any(not pattern.gaps and pattern.oldest(FAR) == 0 for pattern in patterns)  # `oldest` only grows
    return not whole and any(pattern.gaps for pattern in patterns)


def refuse_other_heads(*patterns: Pattern) -> None:
    """Refuses parts of one pattern that are for different numbers of heads."""
    by_number = {pattern.heads: type(pattern).__name__ for pattern in patterns if pattern.heads is not None}
    if len(by_number) > 1:
        (one, first), (other, second), *_ = by_number.items()
        raise FormersError(
            f"{first} for {one} heads and {second} for {other} heads cannot be parts of one pattern: "
            "give each PerHead as many patterns as the model has heads."
        )


def heads_in(head: int | Tensor) -> int:
    """How many heads there must be for `head` to be among them: one more than the largest."""
    if isinstance(head, int):
        return head + 1
    # Where a number cannot be read, or not without waiting for a device, the heads are 0, 1, ...: so mask and executors ask for them.
    readable = head.device.type == "cpu" and concrete(head)
    return int(head.max()) + 1 if readable else head.numel()
