"""How sparse a pattern is: the share of all pairs that its pieces contain, and from which length pieces are worthwhile."""

from __future__ import annotations

from functools import lru_cache

import torch

from formers.patterns import Pattern
from formers.patterns.plan import pairs
from formers.patterns.text import pattern_of

SHORTEST = 512
"""Below this length the fused kernel over all pairs is as fast."""
LARGEST_SHARE = 0.4
"""Above this fraction of all pairs the fused kernel, which computes all of them, is as fast."""
LONGEST = 4096
"""The longest row for which torch.compile looks whether the pattern is sparse."""


@torch.compiler.assume_constant_result
def sparse_from(text: str, heads: int) -> int | None:
    """The length from which pieces are worthwhile, for the pattern of a text: one of 512, 1024, 2048, ...; None if there is none."""
    pattern = pattern_of(text)
    longest = LONGEST if pattern.max_length is None else min(LONGEST, pattern.max_length)
    n = SHORTEST
    while n <= longest:
        if share(pattern.of(n), n, heads if pattern.by_head else 1) <= LARGEST_SHARE:
            return n
        n *= 2
    return None


@lru_cache(maxsize=512)
def share(pattern: Pattern, n: int, heads: int) -> float:
    """The fraction of all pairs that the pieces of a pattern contain."""
    return sum(pairs(pattern.pieces(n, head)) for head in range(heads)) / (n * n * heads)
