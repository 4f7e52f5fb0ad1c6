"""Samples of rows for evaluation, spread over a whole part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from formers.core.random import hash_integers


def spread(total: int, count: int | None = None) -> Tensor:
    """`count` of the numbers 0 ... total-1, ascending (n,), a function of both; all numbers if count is None or not below total.

    One number is taken from each of `count` stretches of equal size: 0 from the first, else the one that a hash of the stretch's index
    selects. Equal distances could select rows of one kind only if kinds repeat periodically, as in exercises.
    """
    if count is None or count >= total:
        return torch.arange(total)
    numbers = np.arange(count, dtype=np.int64)
    edges = np.append(numbers * total // count, total)
    within = hash_integers(numbers) % np.diff(edges).astype(np.uint64)
    chosen = edges[:-1] + within.astype(np.int64)
    chosen[:1] = 0  # row 0 is always included: counting words needs to know where a part begins
    return torch.from_numpy(chosen)


def in_batches(total: int, size: int, sample: int | None = None) -> Iterator[Tensor]:
    """The numbers 0 ... total-1, or a sample of them, in batches of at most `size`."""
    return (some for some in torch.split(spread(total, sample), size) if len(some))
