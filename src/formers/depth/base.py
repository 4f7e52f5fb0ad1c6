"""The depth slot: how many blocks there are, and in which order a stream passes through them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from formers.core import Slot, Stream

Step = Callable[[nn.Module, int, Tensor], Tensor]
"""step(block, t, x): what block makes of x at depth step t, positions and state included."""


class DepthModule(nn.Module):
    """Holds the blocks and applies them in order."""

    blocks: nn.ModuleList
    steps: int

    def forward(self, x: Tensor, stream: Stream, step: Step) -> Tensor:
        """x (batch, length, dim) after the last step; extra losses go into stream.losses.

        A step that was not taken leaves nothing behind for a continuation: whoever skips one must see to that.
        """
        raise TypeError(f"{type(self).__name__} applies no blocks: define forward(x, stream, step).")


class Depth(Slot):
    """How often a block is applied."""

    @property
    def steps(self) -> int:
        """The largest number of depth steps."""
        raise TypeError(f"{type(self).__name__} has no number of steps: define steps.")

    def build(self, block: Callable[[int], nn.Module]) -> DepthModule:
        """The module that holds the blocks, made by calling block(layer)."""
        raise TypeError(f"{type(self).__name__} builds no blocks: define build(block).")
