"""A fixed number of steps, with separate or shared weights.

x^{t+1} = Block_t(x^t)     t = 0 ... n-1                                           E13
x^{t+1} = Block(x^t)       the same weights at every step                          E14
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Context, Sizes
from formers.depth.base import BlockState, Depth, DepthModule, States
from formers.depth.step_input import StepInput
from formers.depth.taps import Taps


class Stacked(Depth):
    """`layers` blocks, one after the other."""

    layers: PositiveInt

    @property
    def steps(self) -> int:
        return self.layers

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        return StackedBlocks([block(layer) for layer in range(self.layers)], self.layers)


class Shared(Depth):
    """One block, applied `layers` times."""

    layers: PositiveInt

    @property
    def steps(self) -> int:
        return self.layers

    @property
    def shared(self) -> bool:
        return True

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        return StackedBlocks([block(0)], self.layers)


class StackedBlocks(DepthModule):
    """Applies its blocks in order, cyclically if there are fewer blocks than steps."""

    def __init__(self, blocks: list[nn.Module], steps: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.steps = steps

    def forward(self, x: Tensor, context: Context, past: States, step_input: StepInput) -> tuple[Tensor, States]:
        blocks = list(self.blocks)  # indexing a ModuleList is slow
        states: list[BlockState] = []
        plain = not self.checkpointing and context.watch is None and Taps not in context.channels
        for t in range(self.steps):
            block, before = blocks[t % len(blocks)], past[t] if past else None
            x = step_input(x, t)
            x, state = block(x, context, before, t) if plain else self.run_block(block, x, context, before, t)  # E13, E14
            states.append(state)
        return x, tuple(states)
