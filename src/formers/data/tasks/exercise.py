"""An exercise: a task with generated rows, each drawn for a given difficulty.

A training row is a function of (training seed, step, index in the batch), a held-out row of (part, index); both also of the exercise's
seed, and vectors, which are drawn all at once, of their number. Training never runs out of rows. The rows of valid and test are fixed:
there are `rows` of them, and their difficulty cycles through the range of their part, so that any stretch is as hard
as the whole.

Training and valid have the difficulties least ... dial; test has a single, larger one. If there are many rows of one difficulty, the hash
of a row assigns it to one part: 1/20 of all to valid, 1/20 to test, the others to training. If there are fewer than 1,000, as for sums of
two digits, they are too few to be split, and may occur in every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from random import Random
from typing import Any, ClassVar, NamedTuple, overload

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Slot
from formers.core.random import derive_seed, generator
from formers.data.numbers import Two

PARTS = ("train", "valid", "test")
FEW = 1000
"""Rows of a difficulty are split if there are at least this many distinct ones."""
BOUNDS = {"valid": (0.0, 0.05), "test": (0.05, 0.1), "train": (0.1, 1.0)}
"""The range of hashes, in [0, 1), of the rows of a part."""
TRIES = 40
"""Number of rows drawn for each row needed, if few of them belong to the part."""
AT_ONCE = 64
"""Number of rows handled at a time, to limit memory."""
PRIME = (1 << 24) - 3
EQUALS = "="
"""The separator between a source and its answer, if one row holds both."""


class Exercise(Slot):
    """A task with generated rows. The fields named by `dial`, and `test_` before it, set the largest difficulty."""

    rows: PositiveInt = 1000
    """Number of rows of valid and test."""
    seed: int = 0
    """Seed that decides which rows are held out."""

    dial: ClassVar[str] = ""
    """The name of the field with the largest difficulty of training; with `test_` before it, the difficulty of test."""
    least: ClassVar[int] = 1
    """The least difficulty."""

    @model_validator(mode="before")
    @classmethod
    def _as_hard(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """By default, test is at least as hard as training."""
        test = f"test_{cls.dial}"
        if not cls.dial or test in fields or not isinstance(fields.get(cls.dial), int):
            return fields
        return {**fields, test: max(cls.model_fields[test].default, fields[cls.dial])}

    @model_validator(mode="after")
    def _hard_enough(self) -> Self:
        self.refuse_sizes()
        return self

    def refuse_sizes(self) -> None:
        """Raises FormersError for difficulties out of range."""
        for name in (self.dial, f"test_{self.dial}") if self.dial else ():
            if getattr(self, name) < self.least:
                raise FormersError(f"{name}={getattr(self, name)} is below the minimum of {self.name}: give {self.least} or more.")
        if self.dial and self.span("test")[0] < (most := self.span("train")[-1]):
            raise FormersError(
                f"test_{self.dial}={self.span('test')[0]} is below {self.dial}={most}, and test must not be easier than training: give "
                f"test_{self.dial}={most} or more."
            )

    @property
    def name(self) -> str:
        """Its name after `task:`."""
        return type(self).__name__.removesuffix("Vectors").lower()

    @classmethod
    def display_name(cls) -> str:
        return f"task:{cls.__name__.removesuffix('Vectors').lower()}"

    def span(self, part: str) -> range:
        """The difficulties of a part."""
        if part == "test":
            hardest = getattr(self, f"test_{self.dial}")
            return range(hardest, hardest + 1)
        return range(self.least, getattr(self, self.dial) + 1)

    @property
    def hardest(self) -> int:
        """The largest difficulty of all parts."""
        return max(self.span(part)[-1] for part in PARTS)

    def difficulties(self, part: str) -> list[int]:
        """The difficulty of each fixed row of a part."""
        span = self.span(part)
        return [span[row % len(span)] for row in range(self.rows)]

    def count(self, size: int) -> int:
        """The approximate number of distinct rows of a difficulty; a lower bound."""
        raise TypeError(f"{type(self).__name__} does not say how many rows it has: define count(size).")

    def is_split(self, size: int) -> bool:
        """Whether rows of a difficulty occur in one part only."""
        return self.count(size) >= FEW

    @property
    def about(self) -> str:
        """One line that describes the exercise and its parts."""
        train, test = self.span("train"), self.span("test")
        few = [size for size in train if not self.is_split(size)]
        shared = f"; rows of {self.dial} {_range(few)} are too few to be split" if few else ""
        ranges = f"{self.dial} {_range(train)} for training, {_range(test)} for testing"
        return f"task:{self.name}, {ranges}, {self.rows:,} rows held out{shared}"


class Strings(Exercise):
    """An exercise of text: a source and its answer."""

    labels: ClassVar[tuple[str, ...] | None] = None
    """The answers if they are few, so that a classifier can be trained on it."""

    @property
    def alphabet(self) -> str:
        """The characters of sources and answers."""
        raise TypeError(f"{type(self).__name__} has no characters: define alphabet.")

    def draw(self, random: Random, size: int) -> Two:
        """A source of a difficulty, and its answer."""
        raise TypeError(f"{type(self).__name__} cannot draw: define draw(random, size).")

    def longest(self, size: int) -> tuple[int, int]:
        """The maximum number of characters of a source and of an answer of a difficulty."""
        raise TypeError(f"{type(self).__name__} does not say how long its rows are: define longest(size).")

    def held(self, part: str, row: int) -> Two:
        """A fixed row of a part."""
        span = self.span(part)
        return self._drawn(Random(derive_seed(self.seed, self.name, part, row)), span[row % len(span)], part)

    def trained(self, seed: int, step: int, row: int) -> Two:
        """A row of the batch of a training step."""
        random = Random(derive_seed(seed, self.name, self.seed, "step", step, row))
        span = self.span("train")
        return self._drawn(random, span[random.randrange(len(span))], "train")

    def _drawn(self, random: Random, size: int, part: str) -> Two:
        """The first drawn row that belongs to a part."""
        low, high = BOUNDS[part] if self.is_split(size) else (0.0, 1.0)
        while True:
            found = self.draw(random, size)
            if low <= derive_seed(self.seed, self.name, found[0]) / 2**63 < high:
                return found


class Held(Sequence[Two]):
    """The fixed rows of a part of text, drawn on access."""

    def __init__(self, exercise: Strings, part: str) -> None:
        self.exercise, self.part = exercise, part

    def __len__(self) -> int:
        return self.exercise.rows

    @overload
    def __getitem__(self, place: int) -> Two: ...
    @overload
    def __getitem__(self, place: slice) -> list[Two]: ...
    def __getitem__(self, place: int | slice) -> Two | list[Two]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return _held(self.exercise, self.part, range(len(self))[place])


@lru_cache(maxsize=1 << 16)
def _held(exercise: Strings, part: str, row: int) -> Two:
    return exercise.held(part, row)


class Steps(NamedTuple):
    """Rows of vectors, padded at the end."""

    tokens: Tensor
    """(rows, length, features), floats."""
    targets: Tensor
    """(rows, length), or (rows, length, places); -100 where there is no target."""
    mask: Tensor
    """(rows, length), True at real steps."""
    difficulty: Tensor
    """(rows, length), the difficulty of each step; 0 after the end."""

    def some(self, rows: slice | Tensor) -> Steps:
        """Some of the rows."""
        return Steps(*(each[rows] for each in self))


class Vectors(Exercise):
    """An exercise of float vectors, with classes as targets at some or all of their steps (Graves, 2016)."""

    @property
    def features(self) -> int:
        """The number of values of a step."""
        raise TypeError(f"{type(self).__name__} has no features: define features.")

    @property
    def classes(self) -> int:
        """The number of classes of each place."""
        raise TypeError(f"{type(self).__name__} has no classes: define classes.")

    @property
    def places(self) -> int:
        """The number of places, each with its own class, of a step."""
        return 1

    def steps(self, size: int) -> int:
        """The maximum number of steps of a row of a difficulty."""
        return size

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        """Rows of these difficulties (rows,), padded to `length` steps."""
        raise TypeError(f"{type(self).__name__} cannot draw: define sample(random, sizes, length).")

    def held(self, part: str) -> Steps:
        """The fixed rows of a part."""
        return self._drawn(generator(self.seed, self.name, part), torch.tensor(self.difficulties(part)), part)

    def trained(self, size: int, seed: int, step: int) -> Steps:
        """The batch of a training step."""
        random = generator(seed, self.name, self.seed, "step", step)
        span = self.span("train")
        return self._drawn(random, torch.randint(span[0], span[-1] + 1, (size,), generator=random), "train")

    def _drawn(self, random: torch.Generator, sizes: Tensor, part: str) -> Steps:
        """Rows of these difficulties that belong to a part: the others are drawn again."""
        length = self.steps(self.span(part)[-1])
        found = self.sample(random, sizes, length)
        split = torch.tensor([self.is_split(size) for size in sizes.tolist()])
        wrong = (split & ~self._belong(found, part)).nonzero().view(-1)
        while len(wrong):
            now, tries = wrong[:AT_ONCE], 1 if part == "train" else TRIES
            again = self.sample(random, sizes[now].repeat_interleave(tries), length)
            right, first = self._belong(again, part).view(-1, tries).max(dim=1)  # the first of each that belongs
            chosen = (torch.arange(len(now)) * tries + first)[right]
            for whole, new in zip(found, again.some(chosen), strict=True):
                whole[now[right]] = new
            wrong = torch.cat([now[~right], wrong[AT_ONCE:]])
        return found

    def _belong(self, steps: Steps, part: str) -> Tensor:
        """Which of the rows (rows,) belong to a part by their hash."""
        share = self._hash(steps.tokens)
        low, high = BOUNDS[part]
        return (share >= low) & (share < high)

    def _hash(self, tokens: Tensor) -> Tensor:
        """A pseudo-random number in [0, 1) for each row (rows,): a sum of integers, exact and so the same on every machine."""
        weights = _weights(self.seed, self.steps(self.hardest), self.features)[: tokens.shape[1]]
        whole = tokens.double().mul_(4096).round_()
        return whole.flatten(1).mv(weights.flatten()).remainder(PRIME) / PRIME


@cache
def _weights(seed: int, length: int, features: int) -> Tensor:
    """Random integers, small enough that sums of their products with numbers up to 8 are exact in float64."""
    return torch.randint(PRIME, (length, features), generator=generator(seed, "parts")).double()


def _range(sizes: Sequence[int]) -> str:
    """Ascending numbers as text; consecutive numbers are written as a range."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and size == runs[-1][-1] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
