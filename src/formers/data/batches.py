"""Batches for training and evaluation: keyword arguments of a model's forward.

The training batch of step s is a pure function of (seed, s): to resume is to go on counting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.core.random import generator
from formers.data.tokenize import Tokenizer

Batch = dict[str, Tensor]


class Batches(Protocol):
    """What training and evaluation ask of data."""

    def train_batch(self, size: int, seed: int, step: int) -> Batch:
        """The batch of a training step."""
        ...

    def eval_batches(self, size: int) -> Iterator[Batch]:
        """Batches that cover the held-out data, each token once."""
        ...


class Language:
    """Windows of a token stream (n,): inputs, and the same shifted by one as targets."""

    def __init__(self, train: Tensor, valid: Tensor, length: int) -> None:
        self.train, self.valid, self.length = train, valid, length

    def train_batch(self, size: int, seed: int, step: int) -> Batch:
        """`size` windows at random places of the training text."""
        rows = _windows(self.train, self.length + 1, size, generator(seed, "batch", step))
        return {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}

    def eval_batches(self, size: int) -> Iterator[Batch]:
        """The held-out text in windows side by side; every byte but the very first is predicted once."""
        for rows in _side_by_side(self.valid, self.length + 1, self.length, size):
            yield {"tokens": rows[:, :-1], "targets": rows[:, 1:]}


class Masked:
    """Windows of a token stream in which some tokens are hidden (Devlin et al., 2018): the targets are those.

    Of 15 % chosen tokens, 80 % become the mask token, 10 % a random one, and 10 % stay.
    """

    def __init__(self, train: Tensor, valid: Tensor, length: int, tokenizer: Tokenizer, share: float = 0.15) -> None:
        self.train, self.valid, self.length, self.share = train, valid, length, share
        self.mask, self.plain = tokenizer.special("mask"), tokenizer.plain

    def train_batch(self, size: int, seed: int, step: int) -> Batch:
        """`size` windows at random places, newly masked."""
        random = generator(seed, "batch", step)
        return self._hide(_windows(self.train, self.length, size, random), random)

    def eval_batches(self, size: int) -> Iterator[Batch]:
        """The held-out text in windows side by side, masked the same way every time."""
        for step, rows in enumerate(_side_by_side(self.valid, self.length, self.length, size)):
            yield self._hide(rows, generator(0, "masked", step))

    def _hide(self, tokens: Tensor, random: torch.Generator) -> Batch:
        chosen = torch.rand(tokens.shape, generator=random) < self.share
        fate = torch.rand(tokens.shape, generator=random)
        other = torch.randint(self.plain, tokens.shape, generator=random)
        shown = torch.where(chosen & (fate < 0.8), self.mask, torch.where(chosen & (fate >= 0.9), other, tokens))
        return {"tokens": shown, "targets": tokens.masked_fill(~chosen, IGNORED)}


class Pairs:
    """Sources and targets of different lengths, padded and masked; targets begin with `begin` and end with `end`."""

    def __init__(
        self, train: Sequence[tuple[list[int], list[int]]], valid: Sequence[tuple[list[int], list[int]]], tokenizer: Tokenizer
    ) -> None:
        self.train, self.valid = train, valid
        self.begin, self.end = tokenizer.special("begin"), tokenizer.special("end")

    def train_batch(self, size: int, seed: int, step: int) -> Batch:
        """`size` pairs drawn at random."""
        rows = torch.randint(len(self.train), (size,), generator=generator(seed, "batch", step))
        return self.batch([self.train[i] for i in rows.tolist()])

    def eval_batches(self, size: int) -> Iterator[Batch]:
        """The held-out pairs in order."""
        for start in range(0, len(self.valid), size):
            yield self.batch(self.valid[start : start + size])

    def batch(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
        """Pairs as one padded batch."""
        source, source_mask = pad([a for a, _ in pairs])
        target, mask = pad([[self.begin, *b] for _, b in pairs])
        goal, _ = pad([[*b, self.end] for _, b in pairs])
        return {
            "source": source,
            "target": target,
            "targets": goal.masked_fill(~mask, IGNORED),
            "source_mask": source_mask,
            "mask": mask,
        }


def pad(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as (batch, length), filled up behind their tokens, and the mask that says where these are."""
    length = max(1, *(len(row) for row in rows))
    tokens = torch.full((len(rows), length), filler, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = True
    return tokens, mask


def _windows(stream: Tensor, width: int, size: int, random: torch.Generator) -> Tensor:
    """`size` windows of `width` tokens at random places, int64; of a shorter stream, all there is."""
    width = min(width, len(stream))
    starts = torch.randint(len(stream) - width + 1, (size, 1), generator=random)
    return stream[starts + torch.arange(width)].long()


def _side_by_side(stream: Tensor, width: int, stride: int, size: int) -> Iterator[Tensor]:
    """Windows of `width` tokens, one every `stride`, in batches of `size`; what is left over comes last, as a shorter one."""
    overlap = width - stride
    whole = max(0, len(stream) - overlap) // stride
    for start in range(0, whole, size):
        count = min(size, whole - start)
        places = (start + torch.arange(count))[:, None] * stride + torch.arange(width)
        yield stream[places].long()
    if len(stream) - overlap > whole * stride:
        yield stream[None, whole * stride :].long()
