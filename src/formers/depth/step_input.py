"""The input of a depth step: x with positions added, before the first step or before each, and dropout before the first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from formers.core import Positions
from formers.position.base import PositionModule


@dataclass(frozen=True)
class StepInput:
    """Maps x (batch, length, dim) and a step t to the input of the block at step t."""

    position: PositionModule
    drop: nn.Dropout
    positions: Positions
    """The positions of the tokens, without the extra vectors before them."""
    every_step: bool
    extra: int = 0
    """The number of extra vectors before the tokens, which have no positions."""

    def __call__(self, x: Tensor, t: int) -> Tensor:
        extra = self.extra
        if t == 0 or self.every_step:
            tokens = self.position(x[:, extra:] if extra else x, self.positions, t)
            x = torch.cat([x[:, :extra], tokens], dim=1) if extra else tokens
        return self.drop(x) if t == 0 and self.drop.training else x
