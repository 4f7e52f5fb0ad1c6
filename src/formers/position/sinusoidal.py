"""Sinusoidal positions (Vaswani et al., 2017, section 3.5).

PE(i, 2j)   = sin(i / 10000^(2j/d))        PE(i, 2j+1) = cos(i / 10000^(2j/d))      i, j = 0, 1, ...     E7

Sines and cosines are interleaved and positions begin at 0, as in the paper. (tensor2tensor puts all sines before all cosines and
divides by d/2-1 in the exponent; the blog counts from 1. Never mix them when loading weights.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import Positions, Range, Sizes
from formers.core.tables import kept
from formers.position.base import Position, PositionModule


class Sinusoidal(Position):
    """Fixed sines and cosines of the position, added once, before the first layer; any length."""

    def build(self, sizes: Sizes) -> PositionModule:
        return SinusoidalModule(sizes.dim)


class SinusoidalModule(PositionModule):
    """Adds PE(i) to the token at position i."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        if torch.compiler.is_compiling():
            return x + sinusoid(positions.tensor(x.device), self.dim).to(x.dtype)
        size = 1 << max(positions.stop - 1, 255).bit_length()
        table = _table(size, self.dim, x.dtype, x.device)
        if isinstance(positions, Range):
            return x + table[positions.start : positions.stop]
        return x + table[positions.tensor(x.device).clamp(min=0)]


def sinusoid(positions: Tensor, dim: int) -> Tensor:
    """PE (..., dim) in float64 of integer positions (...)."""
    even = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double()[..., None] / 10000.0 ** (even / dim)  # E7
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]  # E7


@kept(16)
def _table(size: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a table first made in evaluation must serve training, too
        return sinusoid(torch.arange(size, device=device), dim).to(dtype)
