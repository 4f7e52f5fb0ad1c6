"""Properties of combined patterns: the required number of heads, gaps in the cache, and uniform blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from formers.core import StridedPositions
from formers.patterns.base import Pattern
from formers.patterns.bigbird import BigBird
from formers.patterns.combine import Alternate, Intersection, PerHead, Union
from formers.patterns.globals import Globals

FAR = (1 << 61) - 1
"""A position after every window and block; a prime, so that no block ends there."""


def inner_patterns(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns that a pattern combines."""
    if isinstance(pattern, Union | Intersection):
        return pattern.first, pattern.second
    return pattern.patterns if isinstance(pattern, PerHead | Alternate) else ()


def required_heads(pattern: Pattern) -> int | None:
    """The number of heads that a pattern requires, i.e. the number of patterns of a PerHead in it; None if any."""
    if isinstance(pattern, PerHead):
        return len(pattern.patterns)
    for inner in inner_patterns(pattern):
        heads = required_heads(inner)
        if heads is not None:
            return heads
    return None


def uniform_block(pattern: Pattern) -> int:
    """A block size b such that the positions of each aligned block of b see the same keys and are seen by the same queries."""
    if isinstance(pattern, BigBird):
        return pattern.block
    if isinstance(pattern, Globals):
        return pattern.tokens
    inner = inner_patterns(pattern)
    return math.gcd(*(uniform_block(each) for each in inner)) if inner else 1


def has_gaps(pattern: Pattern) -> bool:
    """Whether `cached` may skip positions between those that it contains, at any t."""
    if isinstance(pattern, Intersection):
        return has_gaps(pattern.first) or has_gaps(pattern.second)  # which of the two `cached` follows depends on t
    inner = inner_patterns(pattern)
    return _any_has_gaps(inner) if inner else isinstance(pattern.cached(FAR), StridedPositions)


def _any_has_gaps(patterns: Sequence[Pattern]) -> bool:
    """Whether the union of the cached positions may have gaps: not if one of the patterns caches every position."""
    gaps = [has_gaps(pattern) for pattern in patterns]
    whole = any(not gap and pattern.oldest(FAR) == 0 for gap, pattern in zip(gaps, patterns, strict=True))  # `oldest` only grows
    return not whole and any(gaps)
