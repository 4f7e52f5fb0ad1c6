"""The words of the numbers 0 ... 999,999, English and French: pairs without a file.

Below a thousand the words are those of `num2words`. Above, with n = 1000 t + r and r > 0,

en(n) = en(1000 t) + (", " if r >= 100 else " and ") + en(r)
fr(n) = fr(1000 t) + " " + fr(r)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import overload

import numpy as np
from numpy.typing import NDArray

from formers.core.random import hash_integers

RANGE = 1_000_000
HELD_OUT = 0.01
"""The share that is held out: large enough for evaluation, small enough to generate."""
Two = tuple[str, str]


class NumberPairs(Sequence[Two]):
    """The words of some numbers, computed on access."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Two: ...
    @overload
    def __getitem__(self, place: slice) -> NumberPairs: ...
    def __getitem__(self, place: int | slice) -> Two | NumberPairs:
        if isinstance(place, slice):
            return NumberPairs(self.numbers[place])
        return english(int(self.numbers[place])), french(int(self.numbers[place]))

    @property
    def words(self) -> list[str]:
        """Texts that contain every character that occurs in any number."""
        return [", ", " and ", *(word for language in ("en", "fr") for table in _tables(language) for word in table)]

    @property
    def longest(self) -> list[Two]:
        """The pair with the longest source and the one with the longest target."""
        sizes = [np.array([[len(word.encode()) for word in table] for table in _tables(language)]) for language in ("en", "fr")]
        totals = [size[1][self.numbers // 1000] * (self.numbers >= 1000) + size[0][self.numbers % 1000] for size in sizes]
        return [self[int(total.argmax())] for total in totals]


def number_pairs() -> dict[str, Sequence[Two]]:
    """Train and valid, split by the hash of a number. Held-out numbers are sorted by hash, so the first ones are a random sample."""
    numbers = np.arange(RANGE)
    share = _hash(numbers)
    held = numbers[share < HELD_OUT]
    return {"train": NumberPairs(numbers[share >= HELD_OUT]), "valid": NumberPairs(held[np.argsort(share[held])])}


def english(n: int) -> str:
    """The number in English words."""
    return _words("en", n, ", " if n % 1000 >= 100 else " and ")


def french(n: int) -> str:
    """The number in French words."""
    return _words("fr", n, " ")


def _words(language: str, n: int, between: str) -> str:
    below, thousands = _tables(language)
    if n < 1000:
        return below[n]
    return thousands[n // 1000] + (between + below[n % 1000] if n % 1000 else "")


@lru_cache(maxsize=2)
def _tables(language: str) -> tuple[list[str], list[str]]:
    """The words of 0 ... 999, and of 0, 1000, ..., 999000."""
    from num2words import num2words

    below, thousands = ([num2words(step * i, lang=language) for i in range(1000)] for step in (1, 1000))
    return below, thousands


def _hash(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) that looks random for each integer."""
    return hash_integers(numbers).astype(np.float64) / 2.0**64
