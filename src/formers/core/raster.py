"""The generation order of an image: a sequence of positions, each with a row, a column and a channel.

A cell is a channel value of a pixel. Position t of the sequence is the t-th generated cell: pixel floor(t/C), channel t mod C.
Pixels are in row-major order; with blocks of h x w pixels, block by block, and row-major inside each block (Parmar et al., 2018). In an
image of H x W pixels, blocks at the right and lower edges are smaller if h x w does not divide H x W:

b = floor(p/(hW))    h_b = min(h, H - bh)    the row of blocks of pixel p, and its height
a = floor((p - bhW)/(h_b w))    w_a = min(w, W - aw)    the block in that row, and its width
o = p - bhW - a h_b w    row = bh + floor(o/w_a)    column = aw + o mod w_a        E74

So patterns, positions and caches use contiguous integers, and the geometry is a function of the position. Images are permuted only in
this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core.errors import FormersError
from formers.core.part import Part
from formers.core.tables import cached


class Cell(NamedTuple):
    """The image coordinates of a position; each an integer, a tensor or an array, of the type of the position."""

    row: Any
    column: Any
    channel: Any


class Raster(Part):
    """The generation order of images of height x width pixels with `channels` cells each; with `block`, block by block."""

    height: PositiveInt
    width: PositiveInt
    channels: PositiveInt = 1
    """Cells per pixel; 1 if a position is a whole pixel."""
    block: tuple[PositiveInt, PositiveInt] | None = None
    """Rows and columns of a block; None: the image is one block."""

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        if self.block is not None and (self.block[0] > self.height or self.block[1] > self.width):
            raise FormersError(
                f"a block of {self.block[0]} x {self.block[1]} pixels is larger than the image of {self.height} x {self.width}: "
                "choose a block inside the image."
            )
        return self

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.height * self.width

    @property
    def cells(self) -> int:
        """Number of positions of the sequence, i.e. cells of an image."""
        return self.pixels * self.channels

    def cell(self, t: int | Tensor | NDArray[np.int64]) -> Cell:
        """Row, column and channel of position t."""
        pixel, channel = t // self.channels, t % self.channels
        (h, w), height, width = self.block or (self.height, self.width), self.height, self.width
        down = pixel // (h * width)
        tall = h - (down == (height - 1) // h) * (-height % h)  # blocks at the lower edge may be smaller
        inside = pixel - down * h * width
        across = inside // (tall * w)
        wide = w - (across == (width - 1) // w) * (-width % w)
        inside = inside - across * tall * w
        return Cell(down * h + inside // wide, across * w + inside % wide, channel)  # E74

    def order(self) -> Tensor:
        """The row-major index of each cell of an image (height, width, channels), in generation order, (cells,)."""
        return _order(self)

    def to_stream(self, images: Tensor) -> Tensor:
        """Images (batch, height, width, channels) as sequences (batch, cells)."""
        return self._checked(images).flatten(1)[:, self.order().to(images.device)]

    def to_pixels(self, images: Tensor) -> Tensor:
        """Images (batch, height, width, any channels) as sequences of whole pixels (batch, pixels, channels)."""
        if self.channels != 1 or images.dim() != 4 or tuple(images.shape[1:3]) != (self.height, self.width):
            raise FormersError(
                f"images of shape {tuple(images.shape)} cannot be read as whole pixels in the order {self!r}: "
                f"give (batch, {self.height}, {self.width}, channels) and an order with channels=1."
            )
        return images.flatten(1, 2)[:, self.order().to(images.device)]

    def to_images(self, sequences: Tensor) -> Tensor:
        """Sequences (batch, cells), or of whole pixels (batch, pixels, channels), as images (batch, height, width, channels)."""
        whole = sequences.dim() == 3 and self.channels == 1
        if (sequences.dim() != 2 and not whole) or sequences.shape[1] != self.cells:
            wanted = f"(batch, {self.cells})" + (f" or (batch, {self.cells}, channels)" if self.channels == 1 else "")
            raise FormersError(f"the sequences have shape {tuple(sequences.shape)}: for images in the order {self!r} give {wanted}.")
        channels = sequences.shape[2] if whole else self.channels
        return sequences[:, _inverse(self).to(sequences.device)].view(len(sequences), self.height, self.width, channels)

    def _checked(self, images: Tensor) -> Tensor:
        shape = (self.height, self.width, self.channels)
        if images.dim() != 4 or tuple(images.shape[1:]) != shape:
            raise FormersError(f"images have shape {tuple(images.shape)}: give (batch, {', '.join(map(str, shape))}).")
        return images


@cached(32)
def _order(raster: Raster) -> Tensor:
    with torch.inference_mode(False):  # a table first computed in evaluation is also used in training
        row, column, channel = raster.cell(torch.arange(raster.cells))
        return torch.as_tensor((row * raster.width + column) * raster.channels + channel)


@cached(32)
def _inverse(raster: Raster) -> Tensor:
    with torch.inference_mode(False):
        return torch.argsort(_order(raster))
