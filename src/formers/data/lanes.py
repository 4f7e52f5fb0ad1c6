"""Batches for members with a memory: each row continues the same row of the previous batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.core.random import generator
from formers.data.batches import ALL, Batch, named, refuse_stride
from formers.data.spread import spread
from formers.data.tokenize import Bytes, Tokenizer

STRETCH = 4
"""Minimum number of segments in a stretch of a sample."""


class Streams:
    """A token stream (n,) cut into contiguous lanes, one for each row of a batch (batchify in other libraries).

    The key `fresh` (rows,) is True where a row does not continue the previous batch, so its memory must be reset. In training
    the stream is circular, and each epoch starts at another position, a function of (seed, epoch).

    warm: number of segments read before each stretch of a sample to fill the memory; they are not counted.
    """

    continues = True

    def __init__(self, parts: Mapping[str, Tensor], length: int, tokenizer: Tokenizer = Bytes(), warm: int = 2) -> None:
        self.parts, self.length, self.tokenizer, self.warm = named(parts), length, tokenizer, warm

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """The segments of a step: row b holds the next `length` tokens of lane b; fewer if the text is too short for all lanes."""
        stream = self.parts["train"]
        lane = self.lane(size)
        length = min(self.length, lane)
        steps = lane // length
        epoch, segment = divmod(step, steps)
        start = torch.randint(len(stream), (), generator=generator(seed, "epoch", epoch))
        places = start + (torch.arange(size)[rows, None] * steps + segment) * length + torch.arange(length + 1)
        found = stream[places % len(stream)].long()
        fresh = torch.full((len(found),), segment == 0)
        return {"tokens": found[:, :-1].contiguous(), "targets": found[:, 1:].contiguous(), "fresh": fresh}

    def lane(self, size: int) -> int:
        """The number of tokens in each of `size` lanes of the training text."""
        return max(1, (len(self.parts["train"]) - 1) // size)

    def beginning(self, part: str, count: int) -> Streams:
        """The same, with a part cut after `count` targets: lanes are then cut from these only."""
        return Streams({part: self.parts[part][: count + 1]}, self.length, self.tokenizer, self.warm)

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """A part in `size` lanes (fewer if it is tiny), segment by segment; each token but the very first is evaluated once.

        Lanes overlap by one token and differ by at most one in length: after the end of a lane, in the last batch only, targets are -100.
        Its inputs there come after all evaluated tokens, so they need no mask.

        sample: only about this many segments, in stretches spread over the part, `size` stretches per batch.
        """
        refuse_stride(stride)
        stream = self.parts[part]
        count = len(stream) - 1
        if sample is not None and sample < -(-count // self.length):
            yield from self._stretches(stream, size, sample)
            return
        size = min(size, count)
        edges = torch.arange(size + 1) * count // size
        longest = int((edges[1:] - edges[:-1]).max())
        for begin in range(0, longest, self.length):
            width = min(self.length, longest - begin)
            places = edges[:-1, None] + begin + torch.arange(width)
            real = places < edges[1:, None]
            yield {
                "tokens": stream[places.clamp(max=count)].long(),
                "targets": stream[(places + 1).clamp(max=count)].long().masked_fill(~real, IGNORED),
                "fresh": torch.full((size,), begin == 0),
            }

    def stretch(self, sample: int) -> int:
        """The number of segments in each stretch of a sample of `sample` segments: enough to be worth its warm-up."""
        return min(max(STRETCH, 2 * self.warm), sample)

    def _stretches(self, stream: Tensor, size: int, sample: int) -> Iterator[Batch]:
        """Stretches of segments, each preceded by `warm` segments, or by all if there are fewer."""
        segments, stretch = -(-(len(stream) - 1) // self.length), self.stretch(sample)
        begins = spread(-(-segments // stretch), sample // stretch) * stretch
        before = begins.clamp(max=self.warm)
        for warm in sorted(set(before.tolist())):  # first those at the beginning of the stream, without a warm-up
            for rows in torch.split(begins[before == warm], size):
                for segment in range(-warm, stretch):
                    batch = self._segment(stream, rows + segment, counted=segment >= 0)
                    yield {**batch, "fresh": torch.full((len(rows),), segment == -warm)}

    def _segment(self, stream: Tensor, numbers: Tensor, counted: bool) -> Batch:
        """The segments with these indices (rows,); targets are -100 after the end of the stream, and everywhere unless `counted`."""
        last = len(stream) - 1
        places = numbers[:, None] * self.length + torch.arange(self.length)
        targets = stream[(places + 1).clamp(max=last)].long()
        return {"tokens": stream[places.clamp(max=last)].long(), "targets": targets.masked_fill((places >= last) | (not counted), IGNORED)}
