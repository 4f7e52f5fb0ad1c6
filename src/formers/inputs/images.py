"""Image inputs (Parmar et al., 2018, section 3.1): one channel value or one pixel per position.

x_t = sqrt(d) E_c[v_(t-1)]        v a channel value, c = (t-1) mod C its channel; one table E_c per channel      E79
x_t = ReLU(W f_(t-1) + b)         f the channel values of a pixel, in [-1, 1]: a 1 x C convolution over channels

The model predicts cell t from earlier cells, so the input of position t is cell t-1. There is no cell before the first: x_0 = 0, and
the input at position 0 is ignored. In an encoder, which predicts nothing, the input of position t is cell t (`shifted` False).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Positions, Range
from formers.core.debug import checks_values
from formers.core.devices import on_host
from formers.inputs.base import Input, InputModule, InputSizes, Untied
from formers.inputs.tokens import integers, out_of_range, refuse_out_of_range
from formers.inputs.vectors import LinearInput


class ChannelValues(Input):
    """Channel values (batch, cells) 0 ... vocab-1 in generation order, with one table for each of `channels`."""

    channels: PositiveInt = 1
    shifted: bool = True
    """Whether the input of position t is the value of cell t-1, and of position 0 nothing."""

    def build(self, sizes: InputSizes) -> InputModule:
        return ChannelEmbedding(sizes, self)


class Pixels(Input):
    """Pixels (batch, pixels, channels) in [-1, 1] in generation order, with `features` channels each."""

    shifted: bool = True
    """Whether the input of position t is pixel t-1, and of position 0 nothing."""
    activation: Literal["relu", "none"] = "relu"

    @property
    def vectors(self) -> bool:
        return True

    def shape(self, features: int | None) -> tuple[int, ...]:
        assert features is not None
        return (features,)

    def build(self, sizes: InputSizes) -> InputModule:
        return PixelInput(sizes, self)


class ChannelEmbedding(Untied):
    """Looks up each value in the table of its channel."""

    undecayed: ClassVar[tuple[str, ...]] = ("values",)

    def __init__(self, sizes: InputSizes, part: ChannelValues) -> None:
        super().__init__()
        assert sizes.vocab is not None
        self.vocab, self.scale, self.part = sizes.vocab, sizes.scale, part
        self.values = nn.Parameter(torch.randn(part.channels * sizes.vocab, sizes.dim) * (sizes.spread / sizes.scale))
        """The stacked tables of the channels."""

    def check(self, x: Tensor) -> Tensor:
        return integers(x, (), "(batch, length), the levels of cells in generation order")

    def check_ids(self, x: Tensor) -> None:
        refuse_out_of_range(x, self.vocab)

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        x = self.check(x)
        where = Range(0, x.shape[1]) if positions is None else positions
        channels = self.part.channels
        if (channels > 1 or not on_host(x)) and checks_values(x):  # otherwise it could be a row of another channel's table
            self.check_ids(x)
        if channels > 1:
            cell = where.tensor(x.device) - (1 if self.part.shifted else 0)
            x = x + self.vocab * (cell % channels)
        try:
            vectors = F.embedding(x, self.values)
        except IndexError:
            raise out_of_range(x, self.vocab) from None
        vectors = vectors * self.scale if self.scale != 1.0 else vectors
        return without_first(vectors, where) if self.part.shifted else vectors  # E79


class PixelInput(LinearInput):
    """A linear map of the channels of a pixel, and ReLU."""

    def __init__(self, sizes: InputSizes, part: Pixels) -> None:
        super().__init__(sizes)
        self.part = part

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        vectors = super().forward(x)
        vectors = F.relu(vectors) if self.part.activation == "relu" else vectors
        return without_first(vectors, Range(0, x.shape[1]) if positions is None else positions) if self.part.shifted else vectors


def without_first(x: Tensor, positions: Positions) -> Tensor:
    """x (batch, length, dim), 0 at position 0."""
    if not isinstance(positions, Range):
        return x.masked_fill((positions.tensor(x.device) == 0)[..., None], 0.0)
    return x if positions.start else F.pad(x[:, 1:], (0, 0, 1, 0))
