"""The depth slot: how many blocks there are, and in which order a stream passes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from formers.core import Sizes, Slot, Stream


class Walk(Protocol):
    """One pass of a stream through a stack, of which the depth says how often and through which block it goes next."""

    def enter(self, x: Tensor, t: int) -> Tensor:
        """x (batch, length, dim) with what is added to it before depth step t, such as positions."""
        ...

    def through(self, block: nn.Module, x: Tensor, t: int) -> Tensor:
        """What a block makes of x at depth step t, state included."""
        ...

    def some(self, block: nn.Module, x: Tensor, t: int, active: Tensor) -> Tensor | None:
        """What a block makes of the tokens of x that are `active` (batch, length), (active tokens, dim); all of x may be looked at.

        None where the block cannot leave tokens out. Tokens that are not active leave behind for a continuation what they would.
        """
        ...

    def rows(self, kept: Tensor) -> Walk | None:
        """The walk of the rows kept (n,) alone; None where the others are needed for a continuation."""
        ...


class DepthModule(nn.Module):
    """Holds the blocks and applies them in order."""

    blocks: nn.ModuleList
    steps: int

    def forward(self, x: Tensor, stream: Stream, walk: Walk) -> Tensor:
        """x (batch, length, dim) after the last step; extra losses go into stream.losses.

        A step that was not taken leaves nothing behind for a continuation: whoever skips one must see to that.
        """
        raise TypeError(f"{type(self).__name__} applies no blocks: define forward(x, stream, walk).")


class Depth(Slot):
    """How often a block is applied."""

    @property
    def steps(self) -> int:
        """The largest number of depth steps."""
        raise TypeError(f"{type(self).__name__} has no number of steps: define steps.")

    @property
    def shared(self) -> bool:
        """Whether every step applies the same block."""
        return False

    @property
    def ponders(self) -> int | None:
        """The most steps of a token that decides by itself how many it takes; None where all take the same."""
        return None

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        """The module that holds the blocks, made by calling block(layer)."""
        raise TypeError(f"{type(self).__name__} builds no blocks: define build(block, sizes).")
