"""Taps: the outputs of some depth steps, for losses that are computed at them in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Taps:
    """A side channel of the forward context: which steps are tapped, and their outputs."""

    steps: tuple[int, ...]
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """(batch, length, dim) by step, as the head would get them if the stack ended there."""
    read: Callable[[Tensor], Tensor] | None = None
    """The function that the stack applies between its last block and the head."""

    def note(self, step: int, x: Tensor) -> None:
        """Records the output x (batch, length, dim) of a step, if it is tapped."""
        if step in self.steps:
            self.outputs[step] = x if self.read is None else self.read(x)
