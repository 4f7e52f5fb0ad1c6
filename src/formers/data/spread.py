"""Which rows of a part are evaluated where not all of them are: some that are spread over all of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from formers.core.random import hash_integers


def spread(total: int, count: int | None = None) -> Tensor:
    """`count` of the numbers 0 ... total-1, ascending (n,), a function of the two alone; all of them without a count or without enough.

    One number is taken from each of `count` stretches of equal size: 0 from the first, elsewhere the one that a hash of the stretch's
    number chooses. At equal distances rows could all be of one kind where kinds repeat with a period, as in exercises.
    """
    if count is None or count >= total:
        return torch.arange(total)
    numbers = np.arange(count, dtype=np.int64)
    edges = np.append(numbers * total // count, total)
    within = hash_integers(numbers) % np.diff(edges).astype(np.uint64)
    chosen = edges[:-1] + within.astype(np.int64)
    chosen[:1] = 0  # the text before the first token of a part is not known: who counts words needs to know that a part begins
    return torch.from_numpy(chosen)


def in_batches(total: int, size: int, sample: int | None = None) -> Iterator[Tensor]:
    """The numbers 0 ... total-1, or a sample of so many of them, at most `size` at a time."""
    return (some for some in torch.split(spread(total, sample), size) if len(some))
