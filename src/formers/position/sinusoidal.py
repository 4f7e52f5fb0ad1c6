"""Sinusoidal positions (Vaswani et al., 2017, section 3.5).

PE(i, 2j)   = sin(i / 10000^(2j/d))        PE(i, 2j+1) = cos(i / 10000^(2j/d))      i, j = 0, 1, ...     E7

Sines and cosines are interleaved and positions begin at 0, as in the paper. (tensor2tensor puts all sines before all cosines and
divides by d/2-1 in the exponent; the blog counts from 1. Do not mix them when loading weights.)
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from formers.core import Positions, Range, Sizes
from formers.core.devices import widest_float
from formers.core.tables import cached
from formers.position.base import Position, PositionModule
from formers.position.offset import random_start


class Sinusoidal(Position):
    """Fixed sines and cosines of the position, added once, before the first layer; any length."""

    offset: NonNegativeInt = 0
    """In training, rows start at a random position up to this one."""

    def trained_positions(self, length: int) -> int:
        return length + self.offset

    def build(self, sizes: Sizes) -> PositionModule:
        return SinusoidalModule(sizes.dim, self.offset)


class SinusoidalModule(PositionModule):
    """Adds PE(i) to the token at position i."""

    def __init__(self, dim: int, offset: int) -> None:
        super().__init__()
        self.dim, self.offset = dim, offset

    def shifted(self, positions: Positions, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
        return random_start(positions, self.offset, batch, device, starts) if self.offset and self.training else positions

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        return x + sinusoids_at(positions, self.dim, x)


def sinusoids_at(positions: Positions, dim: int, like: Tensor) -> Tensor:
    """PE (..., dim) of positions, in the dtype and on the device of a tensor: rows of a cached table."""
    if torch.compiler.is_compiling():
        return sinusoid(positions.tensor(like.device), dim).to(like.dtype)
    size = 1 << max(positions.stop - 1, 255).bit_length()
    table = _table(size, dim, like.dtype, like.device)
    if isinstance(positions, Range):
        return table[positions.start : positions.stop]
    return table[positions.tensor(like.device).clamp(min=0)]


def sinusoid(positions: Tensor, dim: int) -> Tensor:
    """PE (..., dim) of integer positions (...), in the widest type of their device."""
    even = torch.arange(0, dim, 2, dtype=widest_float(positions.device), device=positions.device)
    angle = positions.to(even.dtype)[..., None] / 10000.0 ** (even / dim)  # E7
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]  # E7


@cached(16)
def _table(size: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a table first computed in evaluation is also used in training
        return sinusoid(torch.arange(size), dim).to(dtype).to(device)
