"""Observations of an agent: vectors by a linear map, images by a small CNN.

x_i = W f_i + b + sum_k (W_k c(image_ik) + b_k)        c: three 3 x 3 convolutions with ReLU, the last two with stride 2           E168

The floats of a position are the vector f_i followed by the images, each height x width x channels in [0, 1], row-major.
"""

from __future__ import annotations

from math import prod

from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Positions
from formers.inputs.base import InputModule, InputSizes
from formers.inputs.vectors import Features, LinearInput

CHANNELS = (16, 32, 32)


class Observations(Features):
    """Floats (batch, length, features), the last of which are images (height, width, channels)."""

    images: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...] = ()

    @property
    def pixels(self) -> int:
        """The number of floats that belong to images."""
        return sum(map(prod, self.images))

    def build(self, sizes: InputSizes) -> InputModule:
        return ObservationInput(sizes, self)


class ObservationInput(LinearInput):
    """The sum of a linear map of the vector and of the CNN output of each image."""

    def __init__(self, sizes: InputSizes, part: Observations) -> None:
        super().__init__(sizes)
        self.images = part.images
        self.vector = self.features - part.pixels
        if self.vector:
            self.into = nn.Linear(self.vector, sizes.dim)
        else:
            del self.into
        self.eyes = nn.ModuleList([image_encoder(image, sizes.dim) for image in part.images])

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        x = self.check(x).to(next(self.parameters()).dtype)
        start, seen = self.vector, []
        for image, made in zip(self.images, self.eyes, strict=True):
            pixels = x[..., start : start + prod(image)].reshape(-1, *image).movedim(-1, 1)
            seen.append(made(pixels).view(*x.shape[:2], -1))
            start += prod(image)
        if self.vector:
            seen.append(self.into(x[..., : self.vector]))
        whole = seen[0]
        for more in seen[1:]:
            whole = whole + more  # E168
        return whole


def image_encoder(image: tuple[int, int, int], dim: int) -> nn.Sequential:
    """A CNN from images (n, channels, height, width) to (n, dim)."""
    height, width, channels = image
    layers: list[nn.Module] = []
    for i, wide in enumerate(CHANNELS):
        stride = 1 if i == 0 else 2
        layers += [nn.Conv2d(channels, wide, 3, stride, padding=1), nn.ReLU()]
        height, width, channels = -(-height // stride), -(-width // stride), wide
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, dim))
