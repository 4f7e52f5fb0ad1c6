"""Batches of images: streams in generation order, shifted by one, with classes and source images where a model is conditioned on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from formers.core import Raster
from formers.core.random import generator
from formers.data.batches import ALL, Batch, refuse_stride
from formers.data.files import Lazy, Parts
from formers.data.images.binary import draw_binary, fixed_binary
from formers.data.images.convert import to_grey
from formers.data.images.values import ImageData, ImageSet
from formers.data.spread import in_batches


@dataclass(frozen=True)
class Cells:
    """How a model is given images: channel values or whole pixels, in an order, and the source that it is conditioned on."""

    raster: Raster
    levels: int
    pixels: bool = False
    """Whether a position is a whole pixel, given as floats in [-1, 1]; else it is a channel value."""
    label: bool = False
    """Whether the class of each image is given."""
    source: Literal["small", "grey"] | None = None
    source_raster: Raster | None = None

    def stream(self, images: Tensor, raster: Raster | None = None) -> Tensor:
        """Images (batch, height, width, channels) of levels as int64 streams (batch, cells), or (batch, pixels, channels)."""
        raster = raster or self.raster
        return (raster.to_pixels(images) if self.pixels else raster.to_stream(images)).long()

    def given(self, stream: Tensor) -> Tensor:
        """What a model is given for a stream: levels, or pixels as floats in [-1, 1]."""
        return stream.float() * (2.0 / (self.levels - 1)) - 1.0 if self.pixels else stream

    def inputs(self, stream: Tensor) -> Tensor:
        """What a model that predicts a stream is given: position t the cell before it, and position 0 nothing that counts."""
        return self.given(torch.cat([torch.zeros_like(stream[:, :1]), stream[:, :-1]], dim=1))

    def source_images(self, images: Tensor) -> Tensor:
        """The small or grey images of images (batch, height, width, channels)."""
        assert self.source_raster is not None
        return scaled_down(images, self.source_raster.height, self.source_raster.width) if self.source == "small" else to_grey(images)

    def sources(self, images: Tensor) -> Tensor:
        """What the encoder is given for images (batch, height, width, channels)."""
        return self.given(self.stream(self.source_images(images), self.source_raster))

    def batch(self, images: Tensor, labels: Tensor | None) -> Batch:
        """The arguments of a model's forward for images of levels."""
        stream = self.stream(images)
        found = {"targets": stream, "tokens" if self.source is None else "target": self.inputs(stream)}
        if self.source is not None:
            found["source"] = self.sources(images)
        if self.label:
            assert labels is not None
            found["label"] = labels
        return found


class ImageBatches:
    """Images drawn at random for training, and in order for evaluation."""

    continues = False

    def __init__(self, data: ImageData, cells: Cells, flips: bool = False) -> None:
        self.data, self.cells, self.flips, self.length = data, cells, flips, cells.raster.cells
        self.parts: Parts[Table] = Lazy({part: partial(Table.of, data, part) for part in data.parts}, data.parts.name)

    def train_batch(self, size: int, seed: int, step: int, rows: slice = ALL) -> Batch:
        """Images drawn at random, perhaps flipped, and with pixels drawn again where they are dynamically binary."""
        table, random = self.parts["train"], generator(seed, "batch", step)
        index = torch.randint(len(table), (size,), generator=random)
        images = table.images[index]
        if self.data.binary == "dynamic":
            images = draw_binary(images, random)
        if self.flips:
            turned = torch.rand(size, generator=random) < 0.5
            images = torch.where(turned[:, None, None, None], images.flip(2), images)
        return self.cells.batch(images[rows], None if table.labels is None else table.labels[index][rows])

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None, sample: int | None = None) -> Iterator[Batch]:
        """The images of a part in order, or a sample of them."""
        refuse_stride(stride)
        table = self.parts[part]
        for some in in_batches(len(table), size, sample):
            yield self.cells.batch(self.images(part, some), None if table.labels is None else table.labels[some])

    def images(self, part: str, index: Tensor) -> Tensor:
        """Images of a part as evaluation sees them, (n, height, width, channels): dynamically binary ones are drawn once."""
        images = self.parts[part].images[index]
        return fixed_binary(images, index, part) if self.data.binary == "dynamic" else images


class Table:
    """The images of a part."""

    def __init__(self, found: ImageSet) -> None:
        self.images, self.labels = found

    @classmethod
    def of(cls, data: ImageData, part: str) -> Table:
        """The images of a part of data."""
        return cls(data.parts[part])

    def __len__(self) -> int:
        return len(self.images)


def scaled_down(images: Tensor, height: int, width: int) -> Tensor:
    """Integer images scaled down to height x width, which divide theirs: the mean of each rectangle, rounded to a level."""
    n, h, w, c = images.shape
    return images.view(n, height, h // height, width, w // width, c).double().mean(dim=(2, 4)).round().to(images.dtype)
