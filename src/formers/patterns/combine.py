"""Patterns side by side: one a head, or one a layer by turns. How factorised attention, in however many parts, is spread over a model.

S_i of head m   = S_i of the m-th pattern           E84
S_i of layer t  = S_i of the (t mod n)-th of n      E85
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from pydantic import field_validator, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Range, StridedPositions
from formers.core.positions import StaticPositions, union
from formers.patterns.base import Integer, Pattern, all_read, gaps_of_all, heads_in, least_room, refuse_other_heads
from formers.patterns.plan import Plan


class _Several(Pattern):
    """What patterns side by side have in common."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:
        name = type(self).__name__
        if patterns and "patterns" in fields:
            raise FormersError(f"{name} takes its patterns once: give them in order, {name}(a, b), or as patterns=(a, b).")
        super().__init__(**(fields if fields and not patterns else {**fields, "patterns": patterns}))

    @field_validator("patterns")
    @classmethod
    def _some(cls, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        if not patterns:
            raise FormersError(f"{cls.__name__} has no patterns: give at least one, as in {cls.__name__}(Causal(), Local(window=8)).")
        return patterns

    @model_validator(mode="after")
    def _one_number_of_heads(self) -> Self:
        refuse_other_heads(self, *self.patterns)
        return self

    @property
    def is_causal(self) -> bool:
        return all(p.is_causal for p in self.patterns)

    @property
    def by_length(self) -> bool:
        return any(p.by_length for p in self.patterns)

    @property
    def room(self) -> int | None:
        return least_room(self.patterns)

    @property
    def grain(self) -> int:
        return math.gcd(*(p.grain for p in self.patterns))

    def of(self, length: int) -> Pattern:
        bound = tuple(p.of(length) for p in self.patterns)
        return self if all(b is p for b, p in zip(bound, self.patterns, strict=True)) else self.replace(patterns=bound)

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        return reduce(or_, (p.keeps(position, t) for p in self.patterns))

    def covers(self, queries: Range, keys: Range) -> bool:
        return all(p.covers(queries, keys) for p in self.patterns)

    def covers_far(self, queries: Range, keys: StridedPositions) -> bool:
        return all(p.covers_far(queries, keys) for p in self.patterns)

    def kept(self, t: int) -> StaticPositions:
        return reduce(union, (p.kept(t) for p in self.patterns))

    @property
    def gaps(self) -> bool:
        return gaps_of_all(self.patterns)

    def reads(self, t: int) -> StaticPositions | None:
        return all_read(self.patterns, t)

    def oldest(self, t: int) -> int:
        return min(p.oldest(t) for p in self.patterns)

    @property
    def reach(self) -> int | None:
        reaches = [p.reach for p in self.patterns]
        return None if None in reaches else max(r for r in reaches if r is not None)


class PerHead(_Several):
    """PerHead(a, b, ...): head 0 sees what a lets it see, head 1 what b does; there are as many heads as patterns."""

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:  # for type checkers, who would make one of the fields
        super().__init__(*patterns, **fields)

    @property
    def by_head(self) -> bool:
        return True

    @property
    def heads(self) -> int:
        return len(self.patterns)

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self._by_head(head, lambda pattern, h: pattern.allows(i, j, h))

    def allows_in(self, i: Integer, j: Integer, head: int | Tensor, length: int | Tensor) -> bool | Tensor:
        return self._by_head(head, lambda pattern, h: pattern.allows_in(i, j, h, length))

    def _by_head(self, head: int | Tensor, ask: Callable[[Pattern, int], bool | Tensor]) -> bool | Tensor:
        """What each head's own pattern answers."""
        asked = heads_in(head)
        if asked > len(self.patterns):
            raise FormersError(f"PerHead has {len(self.patterns)} patterns and is asked for {asked} heads: give one pattern a head.")
        if isinstance(head, int):
            return ask(self.patterns[head], head)  # E84
        allowed = head < 0  # nobody yet
        for h, pattern in enumerate(self.patterns):
            allowed = allowed | ((head == h) & ask(pattern, h))  # E84
        return allowed

    def at(self, layer: int) -> Pattern:
        return PerHead(*(p.at(layer) for p in self.patterns))

    def pieces(self, n: int, head: int = 0) -> Plan:
        pattern = self.patterns[head]
        return pattern.pieces(n, head if pattern.by_head else 0)  # heads that see the same share a plan


class Alternate(_Several):
    """Alternate(a, b, ...): layer 0 sees what a lets it see, layer 1 what b does, and so on by turns.

    Without a layer `allows` is layer 0's; what is kept, and whether it is causal, holds for every layer.
    """

    def __init__(self, *patterns: Pattern, **fields: Any) -> None:  # for type checkers, who would make one of the fields
        super().__init__(*patterns, **fields)

    @property
    def by_head(self) -> bool:
        return any(p.by_head for p in self.patterns)

    @property
    def heads(self) -> int | None:
        return next((p.heads for p in self.patterns if p.heads is not None), None)

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return self.at(0).allows(i, j, head)

    def allows_in(self, i: Integer, j: Integer, head: int | Tensor, length: int | Tensor) -> bool | Tensor:
        return self.at(0).allows_in(i, j, head, length)

    def at(self, layer: int) -> Pattern:
        return self.patterns[layer % len(self.patterns)].at(layer)  # E85
