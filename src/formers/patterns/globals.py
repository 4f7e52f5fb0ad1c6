"""Global tokens: the first g tokens of a row see all and are seen by all (ETC, Ainslie et al., 2020; BigBird, Zaheer et al., 2020).

S_i = {0, ..., n-1} if i < g, else {0, ..., g-1}                                E134
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from formers.core import Range, StridedPositions
from formers.patterns.base import Integer, Pattern
from formers.patterns.bigbird import BigBird
from formers.patterns.plan import Plan, Round, rectangle


class Globals(Pattern):
    """The first `tokens` of a row see all tokens and are seen by all; the others see only these, unless combined with another pattern."""

    tokens: PositiveInt

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (i >= 0) & (j >= 0) & ((i < self.tokens) | (j < self.tokens))  # E134

    def plan_with(self, other: BigBird, n: int, head: int) -> Plan | None:
        """The plan of the union with a BigBird pattern; None if scanning all pairs is as good."""
        rest = other.round_after(self.tokens, n, head)
        return None if rest is None else (*self.pieces(n, head), rest)

    def pieces(self, n: int, head: int = 0) -> Plan:
        first = min(self.tokens, n)
        return (Round((*rectangle(range(first), range(n)), *rectangle(range(first, n), range(first)))),)

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return queries.stop <= self.tokens or keys.stop <= self.tokens
