"""The depth slot: how many blocks there are, and in which order x passes through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from formers.attention.lsh.decisions import Decisions
from formers.core import Context, Sizes, Slot
from formers.core.allocator import release_memory
from formers.core.context import norm
from formers.core.state import LayerState
from formers.depth.step_input import StepInput
from formers.depth.taps import Taps

BlockState = tuple[LayerState | None, ...]
"""What the sublayers of one block return for the continuation at one depth step."""
States = tuple[BlockState, ...]
RELEASE_EVERY = 8
"""Freed memory is released after so many checkpointed blocks: what is kept lies scattered among it, and glibc would let it grow."""


class DepthModule(nn.Module):
    """Holds the blocks and applies them in order."""

    blocks: nn.ModuleList
    steps: int
    checkpointing: bool = False
    """Whether only each block's input is kept for the backward pass, which computes the rest again."""

    def forward(self, x: Tensor, context: Context, past: States, step_input: StepInput) -> tuple[Tensor, States]:
        """x (batch, length, dim) after the last step, and the states of all steps; extra losses go into context.losses.

        A step that is left out has no state: leave steps out only where no state is wanted (`context.keep`).
        """
        raise TypeError(f"{type(self).__name__} applies no blocks: define forward(x, context, past, step_input).")

    def run_block(self, block: nn.Module, x: Tensor, context: Context, past: BlockState | None, step: int) -> tuple[Tensor, BlockState]:
        """x after a block at a depth step, with checkpointing, taps and inspection; and the block's state."""
        if context.watch is not None:
            context.watch.note("stream norm", step, partial(norm, x))
        if self.checkpointing and torch.is_grad_enabled():
            x, state = checkpointed(block, x, context, past, step)
        else:
            x, state = block(x, context, past, step)
        taps: Taps | None = context.channels.get(Taps)
        if taps is not None:
            taps.note(step, x)
        return x, state


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
        """The most steps of a token, where each token decides how many it takes; None where all take the same."""
        return None

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        """The module that holds the blocks, made by calling block(layer)."""
        raise TypeError(f"{type(self).__name__} builds no blocks: define build(block, sizes).")


def checkpointed(block: nn.Module, x: Tensor, context: Context, past: BlockState | None, step: int) -> tuple[Tensor, BlockState]:
    """x after a block, of which only the input is kept; the backward pass computes the rest again, with the same dropout."""
    before: dict[str, Tensor] = dict(context.losses)
    decisions = Decisions()

    def through(x: Tensor) -> tuple[Tensor, BlockState, dict[str, Tensor]]:
        if step % RELEASE_EVERY == 0 and x.device.type == "cpu" and not torch.compiler.is_compiling():
            release_memory()
        inside = replace(context, losses=dict(before)).with_channels(decisions)  # the second pass must not add its losses again
        y, state = block(x, inside, past, step)
        return y, state, inside.losses

    y, state, losses = checkpoint(through, x, use_reentrant=False, preserve_rng_state=True)
    context.losses.update(losses)
    return y, state
