"""Local attention: a sliding window of the nearest keys.

S_i = {i-w+1, ..., i}       the last w keys, including self                     E6
S_i = {i-w, ..., i-1}       without self: still w keys
S_i = {j : |i-j| < w}       not causal: the window on both sides
"""

from __future__ import annotations

from functools import lru_cache

from pydantic import PositiveInt
from torch import Tensor

from formers.core import Range, StridedPositions
from formers.patterns.base import Integer, Pattern
from formers.patterns.plan import Plan, band


class Local(Pattern):
    """Every query sees the last `window` keys, including itself unless `include_self` is False; on both sides if not causal."""

    window: PositiveInt
    causal: bool = True
    include_self: bool = True

    @property
    def is_causal(self) -> bool:
        return self.causal

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        back = i - j if self.causal else abs(i - j)
        nearest = 0 if self.include_self else 1
        return (i >= 0) & (j >= 0) & (back >= nearest) & (back < nearest + self.window)  # E6

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        nearest = 0 if self.include_self else 1
        furthest = queries.stop - 1 - keys.start
        if self.causal:
            return queries.start - (keys.stop - 1) >= nearest and furthest < nearest + self.window
        return self.include_self and max(furthest, keys.stop - 1 - queries.start) < self.window

    @property
    def reach(self) -> int:
        return self.window - (1 if self.include_self else 0)

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _bands(n, self.reach, 0 if self.causal else self.reach, self.include_self)

    def oldest(self, t: int) -> int:
        return max(0, t - self.reach)


@lru_cache(maxsize=32)
def _bands(n: int, before: int, after: int, own: bool) -> Plan:
    return (band(n, before, after, own),)
