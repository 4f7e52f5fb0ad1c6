"""Parity: is the number of ones odd?

text       bits b_1 ... b_n              -> sum b_i mod 2
vectors    one step of `size` entries, n of them +1 or -1 and the others 0 -> 1 if the number of +1 is odd (Graves, 2016, section 3.1)

There is no short cut: until the last bit is read, both answers are equally likely. A circuit of fixed depth that solves n bits does not
solve more, whereas a model that reads bit by bit only needs to remember one.
"""

from __future__ import annotations

from math import comb
from random import Random
from typing import ClassVar

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor

from formers.core import FormersError
from formers.data.numbers import Two
from formers.data.tasks.exercise import Steps, Strings, Vectors


class Parity(Strings):
    """Whether a string has an odd number of ones."""

    bits: int = 16
    test_bits: int = 32
    dial: ClassVar[str] = "bits"
    labels: ClassVar[tuple[str, ...] | None] = ("0", "1")

    @property
    def alphabet(self) -> str:
        return "01"

    def draw(self, random: Random, size: int) -> Two:
        bits = "".join(random.choices("01", k=size))
        return bits, str(bits.count("1") % 2)

    def count(self, size: int) -> int:
        return 2**size

    def longest(self, size: int) -> tuple[int, int]:
        return size, 1


class ParityVectors(Vectors):
    """Whether one vector has an odd number of entries +1, as in Graves (2016)."""

    size: PositiveInt = 64
    """Number of entries."""
    bits: int = 64
    """Maximum number of non-zero entries."""
    test_bits: int = 64
    dial: ClassVar[str] = "bits"

    @model_validator(mode="before")
    @classmethod
    def _as_many(cls, fields: dict[str, object]) -> dict[str, object]:
        """By default, up to all entries are non-zero."""
        size = fields.get("size", cls.model_fields["size"].default)
        return {"bits": size, "test_bits": size, **fields}

    def refuse_sizes(self) -> None:
        for name in ("bits", "test_bits"):
            if getattr(self, name) > self.size:
                raise FormersError(f"{name}={getattr(self, name)} are more than the size={self.size} entries: give at most size.")
        super().refuse_sizes()

    @property
    def features(self) -> int:
        return self.size

    @property
    def classes(self) -> int:
        return 2

    def steps(self, size: int) -> int:
        return 1

    def count(self, size: int) -> int:
        return comb(self.size, size) * 2**size

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        rows = len(sizes)
        rank = torch.rand(rows, self.size, generator=random, dtype=torch.float32).argsort(dim=1)
        sign = torch.randint(2, (rows, self.size), generator=random) * 2 - 1
        x = sign * (rank < sizes[:, None])
        odd = (x == 1).sum(dim=1) % 2
        return Steps(x[:, None].float(), odd[:, None], torch.ones(rows, 1, dtype=torch.bool), sizes[:, None].clone())
