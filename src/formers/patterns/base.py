"""A pattern is a predicate over integer positions: may query i see key j?

Dense masks, execution plans, the trimming of decoding caches and drawings are all computed from it. Positions are absolute;
-1 is an empty slot of a cache, which no query sees. Arguments are Python integers or tensors that broadcast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from formers.core import FormersError, Range, Slot, StridedPositions
from formers.core.positions import StaticPositions
from formers.patterns.plan import Plan, scan

Integer = TypeVar("Integer", int, Tensor)
P = TypeVar("P", bound="Pattern")


class Pattern(Slot):
    """A set S_i of keys for every query position i. A subclass defines `allows`; the other members have defaults valid for any set."""

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        """Whether j is in S_i; all other members must agree with it."""
        raise TypeError(f"{type(self).__name__} has no set of keys: define allows(i, j, head).")

    def at(self, layer: int) -> Pattern:
        """The pattern of one layer."""
        return self

    def of(self, length: int | Tensor) -> Pattern:
        """The pattern of a row of `length` tokens; the pattern itself if its sets do not depend on the length.

        For rows of different lengths, `length` is a tensor that broadcasts with i and j; only `allows` works on the result.
        """
        return self

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return False

    @property
    def by_head(self) -> bool:
        """Whether the sets differ between heads."""
        return False

    @property
    def max_length(self) -> int | None:
        """The largest allowed length of a row, None if unlimited; `of` raises FormersError for longer rows."""
        return None

    @property
    def reach(self) -> int | None:
        """The largest distance from a query back to a key; None if unlimited."""
        return None

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        """Whether every query sees every key, decided from integers alone; False if unknown. `keys.near` is ignored."""
        return False

    def oldest(self, t: int) -> int:
        """A position before which queries at t and later see no key; it grows with t."""
        return 0

    def cached(self, t: int) -> StaticPositions:
        """A superset of the positions before t that queries at t and later see: the contents of a decoding cache."""
        oldest = self.oldest(t)
        return Range(oldest, t - oldest)

    def reads(self, t: int) -> StaticPositions | None:
        """A superset of the positions that the query at t sees; None if that is all of `cached`, or unknown."""
        return None

    def pieces(self, n: int, head: int = 0) -> Plan:
        """The pattern over positions 0 ... n-1 as rounds of disjoint pieces, whose union is exactly the pattern."""
        return scanned(self, n, head)

    @property
    @final
    def by_length(self) -> bool:
        """Whether the sets depend on the length of the row, and `of` has not been called yet."""
        return self.of(1) is not self

    @property
    @final
    def heads(self) -> int | None:
        """The required number of heads; None if any."""
        from formers.patterns.structure import required_heads

        return required_heads(self)

    @property
    @final
    def gaps(self) -> bool:
        """Whether `cached` may skip positions between those that it contains, at any t."""
        from formers.patterns.structure import has_gaps

        return has_gaps(self)

    @final
    def mask(self, length: int, heads: int = 1, layer: int = 0) -> Tensor:
        """The pattern as a boolean tensor (heads, length, length), True = may attend."""
        if length < 1 or heads < 1:
            raise FormersError(f"a mask of length={length}, heads={heads} is empty: both must be at least 1.")
        here = torch.arange(length)
        head = torch.arange(heads)[:, None, None]
        allowed = torch.as_tensor(self.at(layer).of(length).allows(here[:, None], here[None, :], head))
        return allowed.expand(heads, length, length).clone()

    @final
    def __or__(self, other: Pattern) -> Pattern:
        from formers.patterns.combine import Union

        return Union(first=self, second=other)

    @final
    def __and__(self, other: Pattern) -> Pattern:
        from formers.patterns.combine import Intersection

        return Intersection(first=self, second=other)


@lru_cache(maxsize=512)  # one per layer and head
def scanned(pattern: Pattern, n: int, head: int) -> Plan:
    """The plan of a pattern, found by evaluating `allows` for every pair."""
    return scan(lambda i, j: torch.as_tensor(pattern.allows(i, j, head)), n)


def bound(pattern: P, length: int | Tensor, **fields: Any) -> P:
    """A copy of a pattern for rows of `length` tokens, with some fields changed.

    It is not validated if the length is a tensor, or under torch.compile, which cannot trace the validation.
    """
    if isinstance(length, int) and not torch.compiler.is_dynamo_compiling():
        return pattern.replace(**fields)
    copy = object.__new__(type(pattern))
    copy.__dict__.update({**pattern.__dict__, **fields})
    return copy
