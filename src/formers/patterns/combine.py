"""Combined patterns: a union, an intersection, one pattern per head, or alternating patterns per layer.

S_i of a | b    = the union of both S_i
S_i of a & b    = the intersection of both S_i
S_i of head m   = S_i of the m-th pattern           E84
S_i of layer t  = S_i of the (t mod n)-th of n      E85
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

from pydantic import field_validator, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Range, StridedPositions
from formers.core.devices import readable
from formers.core.positions import StaticPositions, union
from formers.patterns.base import Integer, Pattern, bound, scanned
from formers.patterns.bigbird import BigBird
from formers.patterns.globals import Globals
from formers.patterns.plan import Plan


class _Two(Pattern):
    """The common code of a | b and a & b."""

    first: Pattern
    second: Pattern

    @model_validator(mode="after")
    def _one_number_of_heads(self) -> Self:
        check_same_heads(self.first, self.second)
        return self

    @property
    def by_head(self) -> bool:
        return self.first.by_head or self.second.by_head

    @property
    def max_length(self) -> int | None:
        return least_max_length((self.first, self.second))

    def of(self, length: int | Tensor) -> Pattern:
        first, second = self.first.of(length), self.second.of(length)
        return self if first is self.first and second is self.second else bound(self, length, first=first, second=second)


class Union(_Two):
    """a | b: query i sees the keys that a or b allows."""

    @property
    def is_causal(self) -> bool:
        return self.first.is_causal and self.second.is_causal

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.first.allows(i, j, head) | self.second.allows(i, j, head)

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _union_plan(self, n, head)

    def at(self, layer: int) -> Pattern:
        return self.first.at(layer) | self.second.at(layer)

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return self.first.covers(queries, keys) or self.second.covers(queries, keys)

    def cached(self, t: int) -> StaticPositions:
        return union(self.first.cached(t), self.second.cached(t))

    def reads(self, t: int) -> StaticPositions | None:
        return all_read((self.first, self.second), t)

    def oldest(self, t: int) -> int:
        return min(self.first.oldest(t), self.second.oldest(t))

    @property
    def reach(self) -> int | None:
        first, second = self.first.reach, self.second.reach
        return None if first is None or second is None else max(first, second)


class Intersection(_Two):
    """a & b: query i sees the keys that both a and b allow."""

    @property
    def is_causal(self) -> bool:
        return self.first.is_causal or self.second.is_causal

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.first.allows(i, j, head) & self.second.allows(i, j, head)

    def at(self, layer: int) -> Pattern:
        return self.first.at(layer) & self.second.at(layer)

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return self.first.covers(queries, keys) and self.second.covers(queries, keys)

    def cached(self, t: int) -> StaticPositions:
        return self._tighter(t)[0]

    def reads(self, t: int) -> StaticPositions | None:
        return self._tighter(t)[1]

    def _tighter(self, t: int) -> tuple[StaticPositions, StaticPositions | None]:
        """`cached` and `reads` of the pattern that caches less: both of the same pattern, so that all read positions are cached."""
        one, other = ((pattern.cached(t), pattern.reads(t)) for pattern in (self.first, self.second))
        if one[0].length != other[0].length:
            return one if one[0].length < other[0].length else other
        return one if other[1] is None or (one[1] is not None and one[1].length <= other[1].length) else other

    def oldest(self, t: int) -> int:
        return max(self.first.oldest(t), self.second.oldest(t))

    @property
    def reach(self) -> int | None:
        return min((r for r in (self.first.reach, self.second.reach) if r is not None), default=None)


class _Several(Pattern):
    """The common code of PerHead and Alternate."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:
        name = type(self).__name__
        if patterns and "patterns" in fields:
            raise FormersError(f"{name} got its patterns twice: give them either in order, {name}(a, b), or as patterns=(a, b).")
        super().__init__(**(fields if fields and not patterns else {**fields, "patterns": patterns}))

    @field_validator("patterns")
    @classmethod
    def _some(cls, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        if not patterns:
            raise FormersError(f"{cls.__name__} has no patterns: give at least one, as in {cls.__name__}(Causal(), Local(window=8)).")
        return patterns

    @model_validator(mode="after")
    def _one_number_of_heads(self) -> Self:
        check_same_heads(self, *self.patterns)
        return self

    @property
    def is_causal(self) -> bool:
        return all(p.is_causal for p in self.patterns)

    @property
    def max_length(self) -> int | None:
        return least_max_length(self.patterns)

    def of(self, length: int | Tensor) -> Pattern:
        patterns = tuple(p.of(length) for p in self.patterns)
        return self if all(a is b for a, b in zip(patterns, self.patterns, strict=True)) else bound(self, length, patterns=patterns)

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return all(p.covers(queries, keys) for p in self.patterns)

    def cached(self, t: int) -> StaticPositions:
        return reduce(union, (p.cached(t) for p in self.patterns))

    def reads(self, t: int) -> StaticPositions | None:
        return all_read(self.patterns, t)

    def oldest(self, t: int) -> int:
        return min(p.oldest(t) for p in self.patterns)

    @property
    def reach(self) -> int | None:
        reaches = [p.reach for p in self.patterns]
        return None if None in reaches else max(r for r in reaches if r is not None)


class PerHead(_Several):
    """PerHead(a, b, ...): head 0 has the pattern a, head 1 has b, and so on; one pattern per head."""

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:  # type checkers would generate a signature from the fields
        super().__init__(*patterns, **fields)

    @property
    def by_head(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        asked = heads_in(head)
        if asked > len(self.patterns):
            raise FormersError(f"PerHead has {len(self.patterns)} patterns, but there are {asked} heads: give one pattern per head.")
        if isinstance(head, int):
            return self.patterns[head].allows(i, j, head)  # E84
        allowed = head < 0  # all False
        for h, pattern in enumerate(self.patterns):
            allowed = allowed | ((head == h) & pattern.allows(i, j, h))  # E84
        return allowed

    def at(self, layer: int) -> Pattern:
        return PerHead(*(p.at(layer) for p in self.patterns))

    def pieces(self, n: int, head: int = 0) -> Plan:
        pattern = self.patterns[head]
        return pattern.pieces(n, head if pattern.by_head else 0)  # heads with the same pattern share a plan


class Alternate(_Several):
    """Alternate(a, b, ...): layer 0 has the pattern a, layer 1 has b, and so on in turn.

    Without a layer, `allows` is that of layer 0; `cached` and `is_causal` hold for every layer.
    """

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:  # type checkers would generate a signature from the fields
        super().__init__(*patterns, **fields)

    @property
    def by_head(self) -> bool:
        return any(p.by_head for p in self.patterns)

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.at(0).allows(i, j, head)

    def at(self, layer: int) -> Pattern:
        return self.patterns[layer % len(self.patterns)].at(layer)  # E85


@lru_cache(maxsize=64)
def _union_plan(pattern: Union, n: int, head: int) -> Plan:
    for one, other in ((pattern.first, pattern.second), (pattern.second, pattern.first)):
        if isinstance(one, Globals) and isinstance(other, BigBird):
            plan = one.plan_with(other, n, head)
            if plan is not None:
                return plan
    return scanned(pattern, n, head)


def all_read(patterns: Sequence[Pattern], t: int) -> StaticPositions | None:
    """A superset of the positions that a query at t sees in any of the patterns; None as in `Pattern.reads`."""
    known = [pattern.reads(t) for pattern in patterns]
    if all(reads is None for reads in known) or not all(pattern.is_causal for pattern in patterns):
        return None
    starts = [pattern.oldest(t) for pattern in patterns]
    return reduce(union, (Range(start, t + 1 - start) if reads is None else reads for start, reads in zip(starts, known, strict=True)))


def least_max_length(patterns: Sequence[Pattern]) -> int | None:
    """The smallest `max_length` of some patterns."""
    return min((pattern.max_length for pattern in patterns if pattern.max_length is not None), default=None)


def check_same_heads(*patterns: Pattern) -> None:
    """Raises FormersError if patterns that are combined require different numbers of heads."""
    by_number = {pattern.heads: type(pattern).__name__ for pattern in patterns if pattern.heads is not None}
    if len(by_number) > 1:
        (one, first), (other, second), *_ = by_number.items()
        raise FormersError(
            f"{first} for {one} heads and {second} for {other} heads cannot be combined: "
            "give each PerHead as many patterns as the model has heads."
        )


def heads_in(head: int | Tensor) -> int:
    """The number of heads needed for `head` to be an index of them: the largest index plus one."""
    if isinstance(head, int):
        return head + 1
    # If the values cannot be read, or not without synchronising a device, the heads are 0, 1, ...: mask and executors pass these.
    return int(head.max()) + 1 if readable(head) else head.numel()
