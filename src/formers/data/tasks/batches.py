"""Batches of exercises: the same rows in the form that each kind of model reads.

pairs         source -> answer                                     encoder-decoders
answers       source = answer end; targets are the answer and end  language models
blanks        source = ? ? ? ...; targets are at the blanks        masked language models
labels        source -> the number of its answer                   classifiers
vectors       floats, and a class or several at each step          members with features

The number of blanks is that of the longest answer of the part and one for the end token, so it does not reveal the length of an answer.
Every kind knows the difficulty of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.data.batches import ALL, Batch, pad, refuse_stride
from formers.data.collate import Labelled, Pairs
from formers.data.files import Lazy, Parts
from formers.data.numbers import Two
from formers.data.pairs import Encoded
from formers.data.spread import in_batches
from formers.data.tasks.exercise import EQUALS, PARTS, Exercise, Held, Steps, Strings, Vectors
from formers.data.tasks.naming import PREFIX
from formers.data.tokenize import Characters, Tokenizer


def tokenizer_of(exercise: Strings, specials: tuple[str, ...]) -> Characters:
    """The character tokenizer of an exercise; it depends on the exercise, not on its rows."""
    return Characters(characters="".join(sorted({*exercise.alphabet, EQUALS})), specials=specials)


class Exercised:
    """Common base of the batches of exercises."""

    exercise: Exercise
    continues = False

    def ending(self) -> int | None:
        """The id of the end token of an answer; None if there is none."""
        return None

    def difficulty(self, part: str) -> Tensor:
        """The difficulty (rows,) of each row of a part: its number of digits, bits, ..."""
        return torch.tensor(self.exercise.difficulties(part))


class _Text(Exercised):
    """Batches of text exercises."""

    exercise: Strings
    tokenizer: Tokenizer

    def ending(self) -> int | None:
        return self.tokenizer.special("end") if "end" in self.tokenizer.specials else None

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Newly drawn rows."""
        return self.rows([self.exercise.trained(seed, step, row) for row in range(size)[rows]], "train")

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The fixed rows of a part in order, or a sample of them."""
        refuse_stride(stride)
        held = Held(self.exercise, part if part in PARTS else self._refused(part))
        for some in in_batches(len(held), size, sample):
            yield self.rows([held[i] for i in some.tolist()], part)

    def rows(self, twos: Sequence[Two], part: str) -> Batch:
        """Sources and answers of a part as one padded batch."""
        raise TypeError(f"{type(self).__name__} cannot pad: define rows(twos, part).")

    def shown(self) -> Two:
        """The prompt of a sample during training, one of the hardest held-out rows, and the right answer."""
        held = Held(self.exercise, "valid")
        return held[min(len(self.exercise.span("valid")), len(held)) - 1]

    def _refused(self, part: str) -> str:
        self.parts[part]  # type: ignore[attr-defined]  # which lists the parts that exist
        return part

    def _encoded(self, twos: Sequence[Two]) -> list[tuple[list[int], list[int]]]:
        return [(self.tokenizer.encode(source), self.tokenizer.encode(answer)) for source, answer in twos]


def _held(exercise: Strings) -> Parts[Any]:
    return Parts({part: Held(exercise, part) for part in PARTS}, PREFIX + exercise.name)


class DrawnPairs(_Text, Pairs):
    """Sources and answers for an encoder-decoder."""

    def __init__(self, exercise: Strings, tokenizer: Tokenizer) -> None:
        parts: Parts[Any] = Parts({part: Encoded(Held(exercise, part), tokenizer) for part in PARTS}, PREFIX + exercise.name)
        Pairs.__init__(self, parts, tokenizer)
        self.exercise = exercise

    def rows(self, twos: Sequence[Two], part: str) -> Batch:
        return self.batch(self._encoded(twos))


class DrawnLabels(_Text, Labelled):
    """Sources and the numbers of their answers."""

    def __init__(self, exercise: Strings, length: int, tokenizer: Tokenizer) -> None:
        assert exercise.labels is not None
        Labelled.__init__(self, _held(exercise), exercise.labels, length, tokenizer)
        self.exercise = exercise

    def rows(self, twos: Sequence[Two], part: str) -> Batch:
        return self.batch(twos)


class Answers(_Text):
    """Rows source = answer end for a language model: targets are the answer and its end."""

    length = 0

    def __init__(self, exercise: Strings, tokenizer: Tokenizer) -> None:
        self.exercise, self.tokenizer, self.parts = exercise, tokenizer, _held(exercise)
        self.equals, self.end = tokenizer.encode(EQUALS), tokenizer.special("end")

    def rows(self, twos: Sequence[Two], part: str) -> Batch:
        both = self._encoded(twos)
        tokens, mask = pad([[*source, *self.equals, *answer] for source, answer in both])
        targets, _ = pad([[IGNORED] * len(source) + [*answer, self.end] for source, answer in both], filler=IGNORED)
        return {"tokens": tokens, "targets": targets, "mask": mask}

    def shown(self) -> Two:
        source, answer = super().shown()
        return source + EQUALS, source + EQUALS + answer


class Blanks(_Text):
    """Rows source = ? ? ? for a masked language model: targets are the answer and its end, where the blanks are."""

    length = 0

    def __init__(self, exercise: Strings, tokenizer: Tokenizer) -> None:
        self.exercise, self.tokenizer, self.parts = exercise, tokenizer, _held(exercise)
        self.equals, self.end, self.blank = tokenizer.encode(EQUALS), tokenizer.special("end"), tokenizer.special("mask")

    def rows(self, twos: Sequence[Two], part: str) -> Batch:
        both, blanks = self._encoded(twos), self.blanks(part)
        tokens, mask = pad([[*source, *self.equals, *[self.blank] * blanks] for source, _ in both])
        targets = torch.full_like(tokens, IGNORED)
        for row, (source, answer) in zip(targets, both, strict=True):
            start = len(source) + 1
            row[start : start + len(answer) + 1] = torch.tensor([*answer, self.end])
        return {"tokens": tokens, "targets": targets, "mask": mask}

    def blanks(self, part: str) -> int:
        """The number of blanks in every row of a part."""
        return max(self.exercise.longest(size)[1] for size in self.exercise.span(part)) + 1


class DrawnVectors(Exercised):
    """Rows of vectors, with one or several classes at each step."""

    exercise: Vectors
    length = 0

    def __init__(self, exercise: Vectors) -> None:
        self.exercise = exercise
        self.held: Parts[Steps] = Lazy({part: partial(exercise.held, part) for part in PARTS}, PREFIX + exercise.name)
        self.parts: Parts[Any] = Parts(dict.fromkeys(PARTS, range(exercise.rows)), PREFIX + exercise.name)

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Newly drawn rows."""
        return _trimmed(self.exercise.trained(size, seed, step).some(rows))

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The fixed rows of a part in order, or a sample of them."""
        refuse_stride(stride)
        for some in in_batches(self.exercise.rows, size, sample):
            yield _trimmed(self.held[part].some(some))

    def step_difficulty(self, part: str) -> Tensor:
        """The difficulty (rows, length) of each step of each row of a part, 0 after the end of a row: its digits, its gates."""
        return self.held[part].difficulty


def _trimmed(steps: Steps) -> Batch:
    """A batch as long as its longest row."""
    length = int(steps.mask.sum(dim=1).max())
    return {name: getattr(steps, name)[:, :length].contiguous() for name in ("tokens", "targets", "mask")}
