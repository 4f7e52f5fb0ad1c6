"""A byte n-gram model: the probability of a byte given the k bytes before it, interpolated with shorter contexts.

P(c | h) = (count(h c) + T(h) P(c | h')) / (count(h) + T(h))         h' = h without its oldest byte       E19

T(h) is the number of different bytes seen after h (Witten and Bell, 1991); the empty context backs off to 1/256.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]


class CountModel:
    """Counts of all byte sequences up to order+1, from a training text."""

    def __init__(self, text: NDArray[np.uint8], order: int = 3) -> None:
        self.order = order
        self.levels = [_count(text, k) for k in range(order + 1)]

    def bits_per_byte(self, text: NDArray[np.uint8]) -> float:
        """Mean of -log2 P(byte | the bytes before it) over all bytes of a text but the first."""
        if len(text) < 2:
            return math.nan
        p = np.full(len(text), 1.0 / 256)
        for k, (grams, counts, contexts, totals, kinds) in enumerate(self.levels):
            gram = _codes(text, k + 1)
            n, t = _lookup(contexts, totals, gram >> np.uint64(8)), _lookup(contexts, kinds, gram >> np.uint64(8))
            seen = n > 0
            better = (_lookup(grams, counts, gram) + t * p[k:]) / np.maximum(n + t, 1)  # E19
            p[k:] = np.where(seen, better, p[k:])
        return float(-np.log2(p[1:]).mean())


def _codes(text: NDArray[np.uint8], width: int) -> Codes:
    """Every run of `width` bytes as one number, the oldest byte highest."""
    codes = np.zeros(len(text) - width + 1, dtype=np.uint64)
    for i in range(width):
        codes = (codes << np.uint64(8)) | text[i : len(text) - width + 1 + i]
    return codes


def _count(text: NDArray[np.uint8], k: int) -> tuple[Codes, NDArray[np.int64], Codes, NDArray[np.int64], NDArray[np.int64]]:
    """The runs of k+1 bytes with their counts, and their contexts of k bytes with totals and numbers of different successors."""
    grams, counts = np.unique(_codes(text, k + 1), return_counts=True)
    contexts, first, kinds = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
    return grams, counts, contexts, np.add.reduceat(counts, first), kinds


def _lookup(keys: Codes, values: NDArray[np.int64], wanted: Codes) -> NDArray[np.int64]:
    """The values of the wanted keys; 0 for a missing key."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
