"""Sorting real numbers (Graves, 2016, section 3.4): n numbers, one per step, then n steps whose targets are their indices in order.

x_t = (value, 1 if it is the last)    t = 1 ... n, value from N(0, 1); no target
x_t = (0, 0)                          t = n + 1 ... 2n; target: the index of the (t - n)-th smallest input, one of `classes`
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.data.tasks.exercise import Steps, Vectors


class SortVectors(Vectors):
    """The indices of real numbers in ascending order, as in Graves (2016); the number of classes is the largest row length of any part."""

    numbers: int = 15
    test_numbers: int = 15
    dial: ClassVar[str] = "numbers"
    least: ClassVar[int] = 2

    @property
    def features(self) -> int:
        return 2

    @property
    def classes(self) -> int:
        return self.hardest

    def steps(self, size: int) -> int:
        return 2 * size

    def count(self, size: int) -> int:
        return int(10 ** (4 * size))  # the reals that a float holds

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        rows, most = len(sizes), length // 2
        value = torch.randn(rows, most, generator=random, dtype=torch.float32)
        there = torch.arange(most) < sizes[:, None]
        order = value.masked_fill(~there, torch.inf).argsort(dim=1)
        x, targets = torch.zeros(rows, length, 2, dtype=torch.float32), torch.full((rows, length), IGNORED)
        x[:, :most, 0] = value * there
        x[torch.arange(rows), sizes - 1, 1] = 1.0
        row, rank = there.nonzero(as_tuple=True)
        targets[row, sizes[row] + rank] = order[row, rank]
        mask = torch.arange(length) < 2 * sizes[:, None]
        return Steps(x, targets, mask, sizes[:, None] * mask)
