"""Column addition: two numbers one below the other, one column per step.

x_k = [onehot(a_k); onehot(b_k)] (20,)     k = 0, ..., n: the digits of two numbers of n digits, the last of each first; at k = n both are 0
y_k = (a_k + b_k + c_k) mod 10             c_0 = 0 and c_{k+1} = 1 if a_k + b_k + c_k > 9: the carry

The target of a column depends on its digits and the carry into it. The carry is decided by the nearest column before k whose digits do
not add up to 9. With uniform digits one column in ten adds up to 9, so the adjacent column nearly always decides. `nines` is the share of
columns that are forced to add up to 9: with 0.5, the carry often comes from far.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from formers.core import IGNORED
from formers.data.tasks.exercise import Steps, Vectors


class Columns(Vectors):
    """The digits of a sum, one per column."""

    digits: int = 12
    test_digits: int = 20
    nines: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The share of columns forced to pass on the carry, in addition to those that do so by chance."""
    dial: ClassVar[str] = "digits"

    @property
    def features(self) -> int:
        return 20

    @property
    def classes(self) -> int:
        return 10

    def steps(self, size: int) -> int:
        return size + 1

    def count(self, size: int) -> int:
        return int(9 * 10 ** (2 * size - 1))

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        rows, place = len(sizes), torch.arange(length)
        two = torch.randint(10, (rows, 2, length), generator=random)
        first = torch.randint(1, 10, (rows,), generator=random)  # one of the two numbers has exactly this many digits
        two[torch.arange(rows), 0, sizes - 1] = first
        passing = torch.rand(rows, length, generator=random, dtype=torch.float32) < self.nines
        two[:, 1] = torch.where(passing, 9 - two[:, 0], two[:, 1])
        two = two * (place < sizes[:, None])[:, None]
        carried, found = torch.zeros(rows, dtype=torch.long), []
        for column in two.sum(dim=1).T:
            found.append((column + carried) % 10)
            carried = (column + carried) // 10
        mask = place <= sizes[:, None]
        x = F.one_hot(two.transpose(1, 2), 10).flatten(2) * mask[..., None]
        targets = torch.stack(found, dim=1).masked_fill(~mask, IGNORED)
        return Steps(x.float(), targets, mask, sizes[:, None] * mask)
