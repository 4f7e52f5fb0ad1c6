"""A term of the scores that depends on the query and on the distance to the key.

b_ij = q_i . t_{i-j} + l_{i-j}        0 <= i-j < reach
b_ij = q_i . a_{j-i}                  0 < j-i <= size of the table a;  minus infinity elsewhere

It is stored as its factors: `tensor` computes the matrix; the executor `distances` computes it in tiles and never stores it whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from formers.core import Positions, Range


@dataclass(frozen=True, eq=False)
class ByDistance:
    """A term by distance, for queries and keys at given positions."""

    q: Tensor
    """(batch, heads, queries, width), already scaled."""
    table: Tensor
    """(heads or 1, reach, width): the vector t of each distance 0, 1, ..."""
    level: Tensor | None
    """Added by distance, minus infinity at masked distances; broadcasts to (batch, heads, queries, reach)."""
    queries: Positions
    keys: Positions
    reaches: tuple[int, ...] | None = None
    """The number of distances that the level does not mask, per head; None if not known as plain integers."""
    ahead: Tensor | None = None
    """(heads or 1, distances, width): the vector a of each distance 1, 2, ... forward; None: later keys are masked."""

    @property
    def reach(self) -> int:
        """The number of distances; keys at this distance or further back are masked."""
        return self.table.shape[1]

    def to(self, dtype: torch.dtype) -> ByDistance:
        """The term with its factors in another dtype."""
        if self.q.dtype == dtype and self.table.dtype == dtype:
            return self
        level, ahead = (None if x is None else x.to(dtype) for x in (self.level, self.ahead))
        return replace(self, q=self.q.to(dtype), table=self.table.to(dtype), level=level, ahead=ahead)

    def tensor(self, allowed: Tensor | None = None) -> Tensor:
        """The term (batch, heads, queries, keys), minus infinity also where `allowed`, which broadcasts to it, is False."""
        shifted = self.shifted()
        if shifted is not None and self.queries.length == 1:  # no key comes after the last token
            return shifted if allowed is None else shifted.masked_fill(~allowed, float("-inf"))
        device, fore = self.q.device, 0 if self.ahead is None else self.ahead.shape[1]
        distance = self.queries.tensor(device)[..., :, None] - self.keys.tensor(device)[..., None, :]
        if distance.dim() == 3:
            distance = distance[:, None]  # rows with different positions: (batch, 1, queries, keys)
        there = (distance >= -fore) & (distance < self.reach)
        found = self.gathered(distance, fore) if shifted is None else shifted
        return found.masked_fill(~(there if allowed is None else there & allowed), float("-inf"))

    def gathered(self, distance: Tensor, fore: int) -> Tensor:
        """The term at distances (queries, keys) or (batch, 1, queries, keys); values at distances outside the tables are undefined."""
        by_distance = self.q @ self.table.mT
        if self.level is not None:
            by_distance = by_distance + self.level
        if self.ahead is not None:
            by_distance = torch.cat([self.q @ self.ahead.flip(1).mT, by_distance], dim=-1)
        shape = (*by_distance.shape[:3], distance.shape[-1])
        return by_distance.gather(3, (distance.clamp(-fore, self.reach - 1) + fore).expand(shape))

    def shifted(self) -> Tensor | None:
        """The term as a view, if the queries are the last of the keys; values at keys after the query are undefined. None otherwise.

        With distances in descending order, row i + 1 is row i shifted by one. With one column more than keys, that is a view (E24).
        """
        queries, keys, n, m = self.queries, self.keys, self.queries.length, self.keys.length
        if self.level is not None or self.ahead is not None or torch.compiler.is_compiling():
            return None
        if not (isinstance(queries, Range) and isinstance(keys, Range) and queries.stop == keys.stop and 0 < n <= m <= self.reach):
            return None
        table = self.table[:, :m].flip(1)
        if n == 1:
            return self.q @ table.mT
        wide = self.q @ pad(table, (0, 0, 0, 1)).mT
        return wide.flatten(2).narrow(2, n - 1, n * m).view(*wide.shape[:2], n, m)
