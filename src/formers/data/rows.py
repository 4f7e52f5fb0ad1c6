"""Rows of one length, such as the bytes of images: each is predicted whole, its first token from a begin token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from formers.core.random import generator
from formers.data.batches import ALL, Batch, named, refuse_stride
from formers.data.spread import in_batches
from formers.data.tokenize import Tokenizer


class Rows:
    """Rows of a table (n, length): inputs are the begin token and all tokens but the last, targets the row itself."""

    continues = False

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer) -> None:
        self.parts, self.length, self.tokenizer = named(parts), length, tokenizer
        self.begin = tokenizer.special("begin")

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Rows drawn at random."""
        table = self.parts["train"]
        return self._batch(table[torch.randint(len(table), (size,), generator=generator(seed, "batch", step))[rows]])

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The rows of a part in order, or a sample of them."""
        refuse_stride(stride)
        table = self.parts[part]
        for some in in_batches(len(table), size, sample):
            yield self._batch(table[some])

    def _batch(self, rows: Tensor) -> Batch:
        targets = rows.long()
        return {"tokens": torch.cat([torch.full_like(targets[:, :1], self.begin), targets[:, :-1]], dim=1), "targets": targets}
