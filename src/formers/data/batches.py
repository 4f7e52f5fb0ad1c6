"""Batches for training and evaluation: keyword arguments of a model's forward.

The training batch of step s is a pure function of (seed, s), so resuming only needs the step number. A process that needs some rows of a
batch requests these rows only.
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
"""Random numbers for each position of a text: whether it is masked, how, and the token that may replace it."""


class Batches(Protocol):
    """The interface of data for training and evaluation."""

    parts: Parts[Any]
    """The data by part: train, valid, perhaps test."""
    length: int
    """Maximum number of tokens in a row; 0 if rows are as long as their content."""
    continues: bool
    """Whether row b of step s+1 continues row b of step s, so that a memory may be carried."""

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Some rows of the batch of a training step; the whole batch has `size` rows."""
        ...

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Batches that cover a part of the data; each token or example is evaluated once.

        sample: only this many rows (windows, segments, examples), spread over the part; the choice depends on the part and this number.
        """
        ...


@runtime_checkable
class Graded(Protocol):
    """Batches whose rows have a known difficulty."""

    def difficulty(self, part: str) -> Tensor:
        """The difficulty (rows,) of each row of a part, in the order of `eval_batches`."""
        ...


@runtime_checkable
class StepGraded(Protocol):
    """Batches in which each step of a row has its own difficulty."""

    def step_difficulty(self, part: str) -> Tensor:
        """The difficulty (rows, length) of each step of each row of a part."""
        ...


class Language:
    """Windows of a token stream (n,): inputs, and the same shifted by one as targets."""

    continues = False

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer = Bytes()) -> None:
        self.parts, self.length, self.tokenizer = named(parts), length, tokenizer

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Windows at random positions of the training text."""
        found = _windows(self.parts["train"], self.length + 1, size, generator(seed, "batch", step), rows)
        return {"tokens": found[:, :-1].contiguous(), "targets": found[:, 1:].contiguous()}

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Windows of `length` tokens, one every `stride` tokens (adjacent if None): each token but the very first is evaluated once.

        Targets of an earlier window are -100, so that with a stride below the length tokens are evaluated with more context.
        """
        if stride is not None and not 1 <= stride <= self.length:
            raise FormersError(f"stride={stride} would skip tokens or not advance: give 1 ... length={self.length}.")
        stride = stride or self.length
        for numbers, rows in _side_by_side(self.parts[part], self.length + 1, stride, size, sample):
            targets = rows[:, 1:].clone()
            targets[numbers > 0, : self.length - stride] = IGNORED
            yield {"tokens": rows[:, :-1], "targets": targets}


class Masked:
    """Windows of a token stream in which some tokens are masked (Devlin et al., 2018); these are the targets.

    15 % of the tokens are chosen: of these, 80 % become the mask token, 10 % a random token, and 10 % stay.
    """

    continues = False

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer, share: float = 0.15) -> None:
        self.parts, self.length, self.tokenizer, self.share = named(parts), length, tokenizer, share
        self.mask, self.plain = tokenizer.special("mask"), tokenizer.plain

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Windows at random positions with newly drawn masks."""
        random = generator(seed, "batch", step)
        batch = self._hide(_windows(self.parts["train"], self.length, size, random), random)
        return {name: value[rows] for name, value in batch.items()}

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """Adjacent windows; the mask is a function of a token's position in the part, so it does not depend on the batch size."""
        refuse_stride(stride)
        for numbers, rows in _side_by_side(self.parts[part], self.length, self.length, size, sample):
            yield self._hide_by_place(rows, numbers[:, None] * self.length)

    def _hide(self, tokens: Tensor, random: torch.Generator) -> Batch:
        """Tokens (rows, length) of a training batch with some of them masked; all rows are drawn together."""
        chosen = torch.rand(tokens.shape, generator=random) < self.share
        if not bool(chosen.any()):  # few tokens: at least one must be masked
            chosen.view(-1)[torch.randint(chosen.numel(), (1,), generator=random)] = True
        fate = torch.rand(tokens.shape, generator=random)
        other = torch.randint(self.plain, tokens.shape, generator=random)
        return self._hidden(tokens, chosen, fate, other)

    def _hide_by_place(self, tokens: Tensor, starts: Tensor) -> Batch:
        """Windows (rows, length) that begin at positions (rows, 1) of their part, with some of their tokens masked."""
        places = starts + torch.arange(tokens.shape[1])
        draw, fate, other = (_uniform(places, which) for which in range(3))
        least = draw == draw.amin(dim=1, keepdim=True)  # few tokens: at least one in every window must be masked
        return self._hidden(tokens, (draw < self.share) | least, fate, (other * self.plain).long())

    def _hidden(self, tokens: Tensor, chosen: Tensor, fate: Tensor, other: Tensor) -> Batch:
        shown = torch.where(chosen & (fate < 0.8), self.mask, torch.where(chosen & (fate >= 0.9), other, tokens))
        return {"tokens": shown, "targets": tokens.masked_fill(~chosen, IGNORED)}


class LastWord:
    """Passages whose last word is to be predicted (LAMBADA; Paperno et al., 2016): only the tokens of that word are targets.

    There is no training part. A passage longer than `length` is cut at its beginning.
    """

    continues = False

    def __init__(self, parts: Mapping[str, Sequence[str]], length: int, tokenizer: Tokenizer) -> None:
        self.parts, self.length, self.tokenizer = named(parts), length, tokenizer

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Raises FormersError: passages are for testing only."""
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
        """The ids of a passage, and the targets of all ids but the last."""
        passage = passage.rstrip()
        ids = self.tokenizer.encode(passage)
        word = len(passage[: passage.rfind(" ") + 1].encode("utf-8"))
        ends = accumulate(len(self.tokenizer.to_bytes([i])) for i in ids)
        goal = [i if end > word else IGNORED for i, end in zip(ids, ends, strict=True)]
        return ids[-self.length - 1 :], goal[1:][-self.length :]


def named(parts: Mapping[str, Any]) -> Parts[Any]:
    """Parts that raise FormersError for a part they do not have."""
    return parts if isinstance(parts, Parts) else Parts(dict(parts))


def refuse_stride(stride: int | None) -> None:
    """Raises for a stride: overlapping windows are for language models that read each window alone."""
    if stride is not None:
        raise FormersError(f"stride={stride} is for language models without a memory: leave it out.")


def pad(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as (batch, length), padded at the end, and the mask (batch, length), True at tokens."""
    length = max(1, *(len(row) for row in rows))
    tokens = torch.full((len(rows), length), filler, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[i, : len(row)] = True
    return tokens, mask


def _windows(stream: Tensor, width: int, size: int, random: torch.Generator, rows: slice = ALL) -> Tensor:
    """Some of `size` windows of `width` tokens at random positions, int64; the whole stream if it is shorter."""
    width = min(width, len(stream))
    starts = torch.randint(len(stream) - width + 1, (size, 1), generator=random)[rows]
    return stream[starts + torch.arange(width)].long()


def _uniform(places: Tensor, which: int) -> Tensor:
    """A number in [0, 1) for each position of a part, float64; `which` selects one of several per position."""
    return torch.from_numpy((hash_integers(places.numpy() * DRAWS + which) >> np.uint64(11)) * 2.0**-53)


def _side_by_side(stream: Tensor, width: int, stride: int, size: int, sample: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of `width` tokens, one every `stride`, in batches of `size`, with their indices (rows,); the last one may be shorter.

    sample: only this many of the windows, spread over the stream.
    """
    whole = max(0, len(stream) - width + stride) // stride
    read = (whole - 1) * stride + width if whole else 0
    chosen = spread(whole + (len(stream) > read), sample)
    for numbers in torch.split(chosen[chosen < whole], size):
        if len(numbers):
            yield numbers, stream[numbers[:, None] * stride + torch.arange(width)].long()
    if len(chosen) and chosen[-1] == whole:
        yield chosen[-1:], stream[None, whole * stride :].long()
