"""Addition: the sum of two numbers, or of all numbers so far.

text       "123+45" -> "168"
vectors    1 ... `numbers` numbers, one a step, of 1 ... `digits` digits: chunk k of a step is the k-th digit as it is written, one-hot,
           or 0 behind the last. Asked for at every step but the first: the sum of the numbers so far, `digits` + 1 places of 11
           classes, place k the k-th digit of the sum as it is written, class 10 behind the last (Graves, 2016, section 3.3)

A digit of the sum needs its two digits and what is carried from all that stand behind them. The numbers of Graves are aligned at their
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
"""The class of a place behind the last digit."""


class Addition(Strings):
    """The sum of two numbers, of which one has just `digits` digits and the other has no more."""

    digits: int = 12
    test_digits: int = 20
    numbers: Literal["any", "equal"] = "any"
    """Whether the other has any number of digits, or as many."""
    order: Literal["written", "reversed"] = "written"
    """Whether numbers and sum begin with their first digit, or with the last, so that what is carried is known when it is needed."""
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
    """A number of so many digits, the first of which is not 0 unless it is the only one."""
    return random.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)


class AdditionVectors(Vectors):
    """The sums of a row of numbers, as Graves has them; how hard a step is, is the number of digits of its number."""

    digits: PositiveInt = 5
    """How many digits a number has at most."""
    numbers: int = 5
    """How many numbers a row has at most."""
    test_numbers: int = 10
    dial: ClassVar[str] = "numbers"

    @model_validator(mode="after")
    def _room(self) -> Self:
        for name in ("numbers", "test_numbers"):
            if getattr(self, name) < 2:
                raise FormersError(
                    f"{name}={getattr(self, name)} asks for nothing, for the first sum comes with the second: give at least 2."
                )
            if getattr(self, name) > 10:
                raise FormersError(
                    f"{name}={getattr(self, name)} numbers of {self.digits} digits have sums of more than {self.places} digits, which have "
                    "no place: give at most 10."
                )
        if self.digits > 17:
            raise FormersError(f"digits={self.digits} are more than an integer of 64 bits holds: give at most 17.")
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
    """The digits (..., places) of numbers from the first on, 10 behind the last."""
    powers = 10 ** torch.arange(places)
    count = (numbers[..., None] >= powers).sum(dim=-1, keepdim=True).clamp(min=1)
    place = torch.arange(places)
    power = 10 ** (count - 1 - place).clamp(min=0)
    return torch.where(place < count, numbers[..., None] // power % 10, EMPTY)
