"""Addition: the sum of two numbers, or of all numbers so far.

text       "123+45" -> "168"
vectors    1 ... `numbers` numbers, one per step, of 1 ... `digits` digits: chunk k of a step is the k-th digit as written, one-hot,
           or 0 after the last. Target at every step but the first: the sum of the numbers so far, `digits` + 1 places of 11
           classes, place k the k-th digit of the sum as written, class 10 after the last (Graves, 2016, section 3.3)

A digit of the sum depends on its two digits and on the carry from all digits after them. The numbers of Graves are aligned at their
first digit here; the paper does not say how.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import IGNORED, FormersError
from formers.data.numbers import Two
from formers.data.tasks.exercise import Steps, Strings, Vectors

EMPTY = 10
"""The class of a place after the last digit."""


class Addition(Strings):
    """The sum of two numbers: one has exactly `digits` digits, the other at most as many."""

    digits: int = 12
    test_digits: int = 20
    numbers: Literal["any", "equal"] = "any"
    """Whether the other number has any number of digits, or equally many."""
    order: Literal["written", "reversed"] = "written"
    """written: first digit first; reversed: last digit first, so that the carry is known when it is needed."""
    dial: ClassVar[str] = "digits"

    @property
    def alphabet(self) -> str:
        return "+0123456789"

    def draw(self, random: Random, size: int) -> Two:
        other = size if self.numbers == "equal" else random.randint(1, size)
        two = [_number(random, size), _number(random, other)]
        random.shuffle(two)
        texts = [str(number) for number in (*two, sum(two))]
        a, b, c = texts if self.order == "written" else [text[::-1] for text in texts]
        return f"{a}+{b}", c

    def count(self, size: int) -> int:
        return 100 if size == 1 else 10 ** (2 * size - 1)

    def longest(self, size: int) -> tuple[int, int]:
        return 2 * size + 1, size + 1


def _number(random: Random, digits: int) -> int:
    """A random number with this many digits; the first digit is not 0 unless it is the only one."""
    return random.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


class AdditionVectors(Vectors):
    """Running sums of a row of numbers, as in Graves (2016); the difficulty of a step is the number of digits of its number."""

    digits: PositiveInt = 5
    """Maximum number of digits of a number."""
    numbers: int = 5
    """Maximum number of numbers in a row."""
    test_numbers: int = 10
    dial: ClassVar[str] = "numbers"

    @model_validator(mode="after")
    def _room(self) -> Self:
        for name in ("numbers", "test_numbers"):
            if getattr(self, name) < 2:
                raise FormersError(f"{name}={getattr(self, name)} has no target, because the first sum needs two numbers: give at least 2.")
            if getattr(self, name) > 10:
                raise FormersError(
                    f"{name}={getattr(self, name)} numbers of {self.digits} digits have sums of more than {self.places} digits: give "
                    "at most 10."
                )
        if self.digits > 17:
            raise FormersError(f"digits={self.digits} do not fit into a 64-bit integer: give at most 17.")
        return self

    @property
    def features(self) -> int:
        return 10 * self.digits

    @property
    def classes(self) -> int:
        return 11

    @property
    def places(self) -> int:
        return self.digits + 1

    def count(self, size: int) -> int:
        return int((10**self.digits) ** size)

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        rows = len(sizes)
        mask = torch.arange(length) < sizes[:, None]
        used = torch.randint(1, self.digits + 1, (rows, length), generator=random)
        written = torch.randint(10, (rows, length, self.digits), generator=random)
        first = torch.randint(1, 10, (rows, length), generator=random)
        written[..., 0] = torch.where(used > 1, first, written[..., 0])
        on = (torch.arange(self.digits) < used[..., None]) & mask[..., None]
        value = torch.zeros(rows, length, dtype=torch.long)
        for i in range(self.digits):
            value = torch.where(on[..., i], 10 * value + written[..., i], value)
        targets = as_written(value.cumsum(dim=1), self.places)
        targets[:, 0], targets[~mask] = IGNORED, IGNORED
        x = torch.zeros(rows, length, self.digits, 10, dtype=torch.float32).scatter_(3, written[..., None], on[..., None].float())
        return Steps(x.flatten(2), targets, mask, used * mask)


def as_written(numbers: Tensor, places: int) -> Tensor:
    """The digits (..., places) of numbers, first digit first, padded with 10."""
    powers = 10 ** torch.arange(places)
    count = (numbers[..., None] >= powers).sum(dim=-1, keepdim=True).clamp(min=1)
    place = torch.arange(places)
    power = 10 ** (count - 1 - place).clamp(min=0)
    return torch.where(place < count, numbers[..., None] // power % 10, EMPTY)
