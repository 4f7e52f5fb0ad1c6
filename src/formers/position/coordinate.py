"""Coordinate embeddings: position and depth step, added before every depth step (Dehghani et al., 2018, equations 6 and 7).

P^t(i, 2j)   = sin(i / 10000^(2j/d)) + sin(t / 10000^(2j/d))
P^t(i, 2j+1) = cos(i / 10000^(2j/d)) + cos(t / 10000^(2j/d))        i = 0, 1, ...   t = 1 ... T                      E100

One block is applied repeatedly; the second term encodes the step. The two terms are summed, not concatenated. The first term is E7 of
the position; the second is E7 of the step or, as in tensor2tensor, a learned vector of the step. Either can be omitted. Without the
first, the order must come from the score, and a memory may have any length.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from formers.core import Positions, Range, Sizes
from formers.position.base import Position, PositionModule
from formers.position.offset import random_start
from formers.position.sinusoidal import sinusoids_at


class Coordinate(Position):
    """The sum of a position vector and a depth-step vector, added before every step; any length."""

    place: Literal["sinusoidal", "none"] = "sinusoidal"
    """The encoding of the position."""
    step: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """The encoding of the depth step."""
    offset: NonNegativeInt = 0
    """In training, rows start at a random position up to this one."""

    @property
    def absolute(self) -> bool:
        return self.place != "none"

    @property
    def every_step(self) -> bool:
        return True

    def trained_positions(self, length: int) -> int:
        return length + self.offset

    def build(self, sizes: Sizes) -> PositionModule:
        return CoordinateModule(sizes, self)


class CoordinateModule(PositionModule):
    """Adds P^t(i) to the token at position i, t = step + 1."""

    def __init__(self, sizes: Sizes, part: Coordinate) -> None:
        super().__init__()
        self.dim, self.part = sizes.dim, part
        learned = part.step == "learned"
        self.steps = nn.Parameter(torch.randn(sizes.depth_steps, sizes.dim) * sizes.spread) if learned else None

    def shifted(self, positions: Positions, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
        offset = self.part.offset
        return random_start(positions, offset, batch, device, starts) if offset and self.training else positions

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        place = sinusoids_at(positions, self.dim, x) if self.part.place == "sinusoidal" else None
        time = self._time(step, x)
        if place is None or time is None:
            signal = place if time is None else time
            return x if signal is None else x + signal
        return x + (place + time)  # E100

    def step_vector(self, step: int, x: Tensor) -> Tensor:
        """The vector (dim) of the step; the position vectors are the same at every step."""
        time = self._time(step, x)
        return x.new_zeros(self.dim) if time is None else time.view(self.dim)

    def _time(self, step: int, x: Tensor) -> Tensor | None:
        """The vector (dim) of a depth step, in the dtype of x; None without one."""
        if self.steps is not None:
            return self.steps[step].to(x.dtype)
        return sinusoids_at(Range(step + 1, 1), self.dim, x) if self.part.step == "sinusoidal" else None
