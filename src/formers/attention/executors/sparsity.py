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
"""The longest row for which it is computed, under torch.compile, whether the pattern is sparse."""


@torch.compiler.assume_constant_result  # type: ignore[misc]
def sparse_from(text: str, heads: int) -> int | None:
    """The length from which pieces are worthwhile, for the pattern of a text: 512, 1024, ... or its largest; None if there is none."""
    pattern = pattern_of(text)
    lengths = [SHORTEST]
    while lengths[-1] < LONGEST:
        lengths.append(2 * lengths[-1])
    most = pattern.max_length
    if most is not None:  # the full length may have a better plan than others
        lengths = [n for n in lengths if n < most] + ([most] if most >= SHORTEST else [])
    each = heads if pattern.by_head else 1
    return next((n for n in lengths if share(pattern.of(n), n, each) <= LARGEST_SHARE), None)


@lru_cache(maxsize=512)
def share(pattern: Pattern, n: int, heads: int) -> float:
    """The fraction of all pairs that the pieces of a pattern contain."""
    return sum(pairs(pattern.pieces(n, head)) for head in range(heads)) / (n * n * heads)
