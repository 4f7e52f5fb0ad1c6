"""Lookup in the input: recall at a distance, and retrieval by key.

recall       a word, then `distance` digits that mean nothing -> the word
retrieval    pairs of a key and its value, then a key: b7a3d9?a -> 3

Both copy one symbol or a few. The difficulty is the distance, or the number of other pairs.
"""

from __future__ import annotations

from math import perm
from random import Random
from string import ascii_lowercase, digits
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, model_validator
from typing_extensions import Self

from formers.core import FormersError
from formers.data.numbers import Two
from formers.data.tasks.exercise import Strings


class Recall(Strings):
    """A word that must be remembered over many digits."""

    distance: int = 20
    test_distance: int = 40
    letters: PositiveInt = 1
    """Number of letters of the word."""
    symbols: Annotated[int, Field(ge=2, le=26)] = 8
    """Number of distinct letters."""
    dial: ClassVar[str] = "distance"

    @property
    def alphabet(self) -> str:
        return digits + ascii_lowercase[: self.symbols]

    def draw(self, random: Random, size: int) -> Two:
        word = "".join(random.choices(ascii_lowercase[: self.symbols], k=self.letters))
        return word + "".join(random.choices(digits, k=size)), word

    def count(self, size: int) -> int:
        return int(self.symbols**self.letters * 10**size)

    def longest(self, size: int) -> tuple[int, int]:
        return self.letters + size, self.letters


class Retrieval(Strings):
    """The value of one of many keys."""

    pairs: int = 8
    test_pairs: int = 16
    dial: ClassVar[str] = "pairs"

    @model_validator(mode="after")
    def _enough_keys(self) -> Self:
        for name in ("pairs", "test_pairs"):
            if getattr(self, name) > len(ascii_lowercase):
                raise FormersError(f"{name}={getattr(self, name)} need more keys than there are letters: give at most 26.")
        return self

    @property
    def alphabet(self) -> str:
        return digits + "?" + ascii_lowercase

    def draw(self, random: Random, size: int) -> Two:
        keys, values = random.sample(ascii_lowercase, size), random.choices(digits, k=size)
        asked = random.randrange(size)
        shown = "".join(f"{key}{value}" for key, value in zip(keys, values, strict=True))
        return f"{shown}?{keys[asked]}", values[asked]

    def count(self, size: int) -> int:
        return int(perm(26, size) * 10**size * size)

    def longest(self, size: int) -> tuple[int, int]:
        return 2 * size + 2, 1
