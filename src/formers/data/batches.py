"""Batches for training and evaluation: keyword arguments of a model's forward.

The training batch of step s is a pure function of (seed, s): to resume is to go on counting. A process that needs a part of the
batch only asks for these rows, and gets exactly them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from formers.core import IGNORED, FormersError
from formers.core.random import generator, hash_integers
from formers.data.files import Parts
from formers.data.spread import in_batches, spread
from formers.data.tokenize import Bytes, Tokenizer

Batch = dict[str, Tensor]
ALL = slice(None)
DRAWS = 3
"""Random numbers for each place of a text: whether it is hidden, what becomes of it, and the token that may replace it."""


class Batches(Protocol):
    """What training and evaluation ask of data."""

    parts: Parts[Any]
    """The data by part: train, valid, perhaps test."""
    length: int
    """Tokens of a row at most; 0 where rows are as long as what they hold."""
    continues: bool
    """Whether row b of step s+1 goes on where row b of step s ended, so that a memory may be carried."""

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Some rows of the batch of a training step, which has `size` of them."""
        ...

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Batches that cover a part of the data, each token or example evaluated once.

        sample: only so many rows (windows, segments, examples), spread over the part; which ones depends on the part and this number.
        """
        ...


@runtime_checkable
class Graded(Protocol):
    """Batches whose rows are known to be more or less hard."""

    def difficulty(self, part: str) -> Tensor:
        """How hard each row of a part is (rows,), in the order of `eval_batches`."""
        ...


@runtime_checkable
class StepGraded(Protocol):
    """Batches in which every step of a row has a difficulty of its own."""

    def step_difficulty(self, part: str) -> Tensor:
        """How hard each step of each row of a part is (rows, length)."""
        ...


class Language:
    """Windows of a token stream (n,): inputs, and the same shifted by one as targets."""

    continues = False

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer = Bytes()) -> None:
        self.parts, self.length, self.tokenizer = named(parts), length, tokenizer

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Windows at random places of the training text."""
        found = _windows(self.parts["train"], self.length + 1, size, generator(seed, "batch", step), rows)
        return {"tokens": found[:, :-1].contiguous(), "targets": found[:, 1:].contiguous()}

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Windows of `length` tokens, one every `stride` (side by side if None): each token but the first of all is judged once.

        What an earlier window has judged is -100, so that with a stride below the length tokens are judged with more context.
        """
        if stride is not None and not 1 <= stride <= self.length:
            raise FormersError(f"stride={stride} would miss tokens or stand still: give 1 ... length={self.length}.")
        stride = stride or self.length
        for numbers, rows in _side_by_side(self.parts[part], self.length + 1, stride, size, sample):
            targets = rows[:, 1:].clone()
            targets[numbers > 0, : self.length - stride] = IGNORED
            yield {"tokens": rows[:, :-1], "targets": targets}


class Masked:
    """Windows of a token stream in which some tokens are hidden (Devlin et al., 2018): the targets are those.

    Of 15 % chosen tokens, 80 % become the mask token, 10 % a random one, and 10 % stay.
    """

    continues = False

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer, share: float = 0.15) -> None:
        self.parts, self.length, self.tokenizer, self.share = named(parts), length, tokenizer, share
        self.mask, self.plain = tokenizer.special("mask"), tokenizer.plain

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Windows at random places, newly masked."""
        random = generator(seed, "batch", step)
        batch = self._hide(_windows(self.parts["train"], self.length, size, random), random)
        return {name: value[rows] for name, value in batch.items()}

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Windows side by side; what is hidden, and by what, is a function of a token's place in the part, whatever the batch size."""
        refuse_stride(stride)
        for numbers, rows in _side_by_side(self.parts[part], self.length, self.length, size, sample):
            yield self._hide_by_place(rows, numbers[:, None] * self.length)

    def _hide(self, tokens: Tensor, random: torch.Generator) -> Batch:
        """Tokens (rows, length) of a training batch with some of them hidden; all rows are drawn together."""
        chosen = torch.rand(tokens.shape, generator=random) < self.share
        if not bool(chosen.any()):  # of few tokens: there must be something to guess
            chosen.view(-1)[torch.randint(chosen.numel(), (1,), generator=random)] = True
        fate = torch.rand(tokens.shape, generator=random)
        other = torch.randint(self.plain, tokens.shape, generator=random)
        return self._hidden(tokens, chosen, fate, other)

    def _hide_by_place(self, tokens: Tensor, starts: Tensor) -> Batch:
        """Windows (rows, length) that begin at these places (rows, 1) of their part, with some of their tokens hidden."""
        places = starts + torch.arange(tokens.shape[1])
        draw, fate, other = (_uniform(places, which) for which in range(3))
        least = draw == draw.amin(dim=1, keepdim=True)  # of few tokens: every window has something to guess
        return self._hidden(tokens, (draw < self.share) | least, fate, (other * self.plain).long())

    def _hidden(self, tokens: Tensor, chosen: Tensor, fate: Tensor, other: Tensor) -> Batch:
        shown = torch.where(chosen & (fate < 0.8), self.mask, torch.where(chosen & (fate >= 0.9), other, tokens))
        return {"tokens": shown, "targets": tokens.masked_fill(~chosen, IGNORED)}


class LastWord:
    """Passages whose last word is to be told (LAMBADA; Paperno et al., 2016): only the tokens that spell it are targets.

    There is nothing to train on. Of a passage longer than `length` the end is read.
    """

    continues = False

    def __init__(self, parts: Mapping[str, Sequence[str]], length: int, tokenizer: Tokenizer) -> None:
        self.parts, self.length, self.tokenizer = named(parts), length, tokenizer

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """None: passages are for testing."""
        raise FormersError(f"{self.parts.name} is for testing only: train on other data.")

    def eval_batches(self, size: int, part: str = "test", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The passages of a part in order."""
        refuse_stride(stride)
        passages = self.parts[part]
        for some in in_batches(len(passages), size, sample):
            rows = [self._row(passages[i]) for i in some.tolist()]
            tokens, mask = pad([ids[:-1] for ids, _ in rows])
            targets, _ = pad([goal for _, goal in rows], filler=IGNORED)
            yield {"tokens": tokens, "targets": targets, "mask": mask}

    def _row(self, passage: str) -> tuple[list[int], list[int]]:
        """A passage's ids, and the targets of all but the last of these."""
        passage = passage.rstrip()
        ids = self.tokenizer.encode(passage)
        word = len(passage[: passage.rfind(" ") + 1].encode("utf-8"))
        ends = accumulate(len(self.tokenizer.to_bytes([i])) for i in ids)
        goal = [i if end > word else IGNORED for i, end in zip(ids, ends, strict=True)]
        return ids[-self.length - 1 :], goal[1:][-self.length :]


def named(parts: Mapping[str, Any]) -> Parts[Any]:
    """Parts that refuse in one sentence what they do not have."""
    return parts if isinstance(parts, Parts) else Parts(dict(parts))


def refuse_stride(stride: int | None) -> None:
    """Windows that overlap are for language models that read each window alone."""
    if stride is not None:
        raise FormersError(f"stride={stride} is for language models without a memory: leave it out.")


def pad(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as (batch, length), filled up behind their tokens, and the mask that says where these are."""
    length = max(1, *(len(row) for row in rows))
    tokens = torch.full((len(rows), length), filler, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = True
    return tokens, mask


def _windows(stream: Tensor, width: int, size: int, random: torch.Generator, rows: slice = ALL) -> Tensor:
    """Some of `size` windows of `width` tokens at random places, int64; of a shorter stream, all there is."""
    width = min(width, len(stream))
    starts = torch.randint(len(stream) - width + 1, (size, 1), generator=random)[rows]
    return stream[starts + torch.arange(width)].long()


def _uniform(places: Tensor, which: int) -> Tensor:
    """A number in [0, 1) for each place of a part, float64; `which` of several for a place."""
    return torch.from_numpy((hash_integers(places.numpy() * DRAWS + which) >> np.uint64(11)) * 2.0**-53)


def _side_by_side(stream: Tensor, width: int, stride: int, size: int, sample: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of `width` tokens, one every `stride`, in batches of `size`, with their numbers (rows,); the last one may be shorter.

    sample: only so many of the windows, spread over the stream.
    """
    whole = max(0, len(stream) - width + stride) // stride
    read = (whole - 1) * stride + width if whole else 0
    chosen = spread(whole + (len(stream) > read), sample)
    for numbers in torch.split(chosen[chosen < whole], size):
        if len(numbers):
            yield numbers, stream[numbers[:, None] * stride + torch.arange(width)].long()
    if len(chosen) and chosen[-1] == whole:
        yield chosen[-1:], stream[None, whole * stride :].long()
