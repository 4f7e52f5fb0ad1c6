"""Batches of examples of different lengths, padded and masked: pairs, labelled texts and stories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.core.random import generator
from formers.data.babi import Story, encode
from formers.data.batches import ALL, Batch, named, pad, refuse_stride
from formers.data.files import Parts
from formers.data.numbers import Two
from formers.data.pairs import Pair
from formers.data.spread import in_batches
from formers.data.tokenize import Tokenizer


class _Drawn:
    """Examples, drawn at random for training and read in order for evaluation."""

    parts: Parts[Any]
    continues = False
    length = 0

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Examples drawn at random."""
        train = self.parts["train"]
        drawn = torch.randint(len(train), (size,), generator=generator(seed, "batch", step))[rows]
        return self.batch([train[i] for i in drawn.tolist()])

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The examples of a part in order, or a sample of them."""
        refuse_stride(stride)
        examples = self.parts[part]
        for some in in_batches(len(examples), size, sample):
            yield self.batch([examples[i] for i in some.tolist()])

    def batch(self, examples: Sequence[Any]) -> Batch:
        """Examples as one padded batch."""
        raise TypeError(f"{type(self).__name__} cannot pad: define batch(examples).")


class Pairs(_Drawn):
    """Sources and targets as token ids; targets begin with `begin` and end with `end`."""

    def __init__(self, parts: Mapping[str, Sequence[Pair]], tokenizer: Tokenizer) -> None:
        self.parts, self.tokenizer = named(parts), tokenizer
        self.begin, self.end = tokenizer.special("begin"), tokenizer.special("end")

    def batch(self, examples: Sequence[Pair]) -> Batch:
        """Pairs as one padded batch."""
        source, source_mask = pad([a for a, _ in examples])
        target, mask = pad([[self.begin, *b] for _, b in examples])
        goal, _ = pad([[*b, self.end] for _, b in examples])
        return {
            "source": source,
            "target": target,
            "targets": goal.masked_fill(~mask, IGNORED),
            "source_mask": source_mask,
            "mask": mask,
        }


class Labelled(_Drawn):
    """Texts and their classes, numbered as in `labels`; a text longer than `length` is cut off."""

    def __init__(self, parts: Mapping[str, Sequence[Two]], labels: Sequence[str], length: int, tokenizer: Tokenizer) -> None:
        self.parts, self.labels, self.length, self.tokenizer = named(parts), tuple(labels), length, tokenizer
        self.classes = {label: number for number, label in enumerate(labels)}

    def batch(self, examples: Sequence[Two]) -> Batch:
        """Texts as one padded batch; targets (batch,)."""
        tokens, mask = pad([self.tokenizer.encode(text)[: self.length] for text, _ in examples])
        return {"tokens": tokens, "targets": torch.tensor([self.classes[label] for _, label in examples]), "mask": mask}


class Stories(_Drawn):
    """Stories of facts (batch, facts, words) and the classes of their answers, numbered as in `labels`.

    A row keeps its last `length` facts, and a fact its first `fact` words.
    """

    def __init__(self, parts: Mapping[str, Sequence[Story]], labels: Sequence[str], length: int, fact: int, tokenizer: Tokenizer) -> None:
        self.parts, self.labels, self.longest, self.tokenizer = named(parts), tuple(labels), length, tokenizer
        self.classes = {label: number for number, label in enumerate(labels)}
        facts = dict.fromkeys(each for stories in self.parts.values() for row in stories for each in row.facts)
        self.numbers = {each: number for number, each in enumerate(facts, start=1)}
        self.table = encode(["", *facts], tokenizer, fact)
        """The words (facts, words) of every distinct fact; the first is padding."""

    def batch(self, examples: Sequence[Story]) -> Batch:
        """Stories as one padded batch; targets (batch,)."""
        numbers, mask = pad([[self.numbers[each] for each in row.facts[-self.longest :]] for row in examples])
        return {"tokens": self.table[numbers], "targets": torch.tensor([self.classes[row.answer] for row in examples]), "mask": mask}

    def difficulty(self, part: str) -> Tensor:
        """The number of facts (rows,) that support the answer of each row of a part."""
        return torch.tensor([row.supporting for row in self.parts[part]])

    def tasks(self, part: str) -> list[int]:
        """The task of each row of a part."""
        return [row.task for row in self.parts[part]]
