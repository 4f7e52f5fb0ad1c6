"""Words to copy, reverse, sort or duplicate.

w = w_1 ... w_n        uniform letters of an alphabet of `symbols`
copy      w -> w
reverse   w -> w_n ... w_1
sort      w -> the same letters in the order of the alphabet
duplication (Kitaev et al., 2020, section 5)   w -> w, all words of one length; as rows of symbols 0 w 0 w

Only positions matter: letters are independent.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from formers.core import IGNORED, FormersError
from formers.core.random import generator
from formers.data.batches import Batch
from formers.data.numbers import Two
from formers.data.tasks.exercise import Strings

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Sorted."""


class _Words(Strings):
    """A random word and its transformation."""

    symbols: Annotated[int, Field(ge=2, le=len(LETTERS))] = 10
    """Number of distinct letters."""

    @property
    def alphabet(self) -> str:
        return LETTERS[: self.symbols]

    def draw(self, random: Random, size: int) -> Two:
        word = "".join(random.choices(self.alphabet, k=size))
        return word, self.answer(word)

    def answer(self, word: str) -> str:
        """The target of a word."""
        return word

    def count(self, size: int) -> int:
        return self.symbols**size

    def longest(self, size: int) -> tuple[int, int]:
        return size, size


class Copy(_Words):
    """The word again."""

    length: int = 20
    test_length: int = 40
    dial: ClassVar[str] = "length"


class Reverse(_Words):
    """The word backwards."""

    length: int = 20
    test_length: int = 40
    dial: ClassVar[str] = "length"

    def answer(self, word: str) -> str:
        return word[::-1]


class Sort(_Words):
    """The letters of the word in alphabetical order; for vectors see `SortVectors`."""

    length: int = 15
    test_length: int = 30
    dial: ClassVar[str] = "length"

    def answer(self, word: str) -> str:
        return "".join(sorted(word))


class Duplication(_Words):
    """The word again; all training words have the same length."""

    words: int = 40
    test_words: int = 40
    dial: ClassVar[str] = "words"

    def span(self, part: str) -> range:
        size = self.test_words if part == "test" else self.words
        return range(size, size + 1)


def duplication(words: int, symbols: int, rows: int, seed: int, step: int = 0, part: str = "train") -> Batch:
    """Rows 0 w 0 w of 2 (words + 1) tokens, as inputs and targets; only the tokens of the second word are targets.

    words: length of a word. symbols: number of symbols without 0, so that vocab is one more. The rows are a function of (seed, step)
    and of the part, so that those of "valid" differ from those of "train".
    """
    for name, value, least in (("words", words, 1), ("symbols", symbols, 2), ("rows", rows, 1)):
        if value < least:
            raise FormersError(f"{name}={value} is too small: give at least {least}.")
    word = torch.randint(1, symbols + 1, (rows, words), generator=generator(seed, "duplication", part, step))
    zero = torch.zeros(rows, 1, dtype=torch.long)
    row = torch.cat([zero, word, zero, word], dim=1)
    targets = row[:, 1:].clone()
    targets[:, : words + 1] = IGNORED
    return {"tokens": row[:, :-1].contiguous(), "targets": targets}


def token_accuracy(logits: Tensor, targets: Tensor) -> float:
    """The share of targets that are the most likely token of the logits (batch, length, vocab)."""
    asked = targets != IGNORED
    return (logits.argmax(dim=-1) == targets)[asked].double().mean().item()
