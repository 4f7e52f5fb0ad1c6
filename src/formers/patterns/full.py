"""Full and causal attention (Vaswani et al., 2017).

S_i = {0, ..., n-1}     all keys                                                E4
S_i = {0, ..., i}       no later keys                                           E5
"""

from __future__ import annotations

from torch import Tensor

from formers.core import Range, StridedPositions
from formers.patterns.base import Integer, Pattern
from formers.patterns.plan import Plan, Round, own_blocks, rectangle


class Full(Pattern):
    """Every query sees every key."""

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (i >= 0) & (j >= 0)  # E4

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return True

    def pieces(self, n: int, head: int = 0) -> Plan:
        return (Round(rectangle(range(n), range(n))),)


class Causal(Pattern):
    """Every query sees itself and the keys before it."""

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i)  # E5

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return keys.stop - 1 <= queries.start

    def pieces(self, n: int, head: int = 0) -> Plan:
        return (own_blocks(n, n),)
