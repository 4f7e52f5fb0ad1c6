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
from formers.core.devices import on_host
from formers.core.state import LayerState
from formers.depth.step_input import StepInput
from formers.depth.taps import Taps

BlockState = tuple[LayerState | None, ...]
"""The states of the sublayers of one block at one depth step."""
States = tuple[BlockState, ...]
RELEASE_EVERY = 8
"""Freed memory is released after every so many checkpointed blocks: saved tensors fragment the heap, and glibc would let it grow."""


class DepthModule(nn.Module):
    """Holds the blocks and applies them in order."""

    blocks: nn.ModuleList
    steps: int
    checkpointing: bool = False
    """Whether only the input of each block is saved for the backward pass, which recomputes the rest."""

    def forward(self, x: Tensor, context: Context, past: States, step_input: StepInput) -> tuple[Tensor, States]:
        """x (batch, length, dim) after the last step, and the states of all steps; extra losses go into context.losses.

        A skipped step has no state: skip steps only if no state is requested (`context.keep`).
        """
        raise TypeError(f"{type(self).__name__} does not apply its blocks: define forward(x, context, past, step_input).")

    def run_block(self, block: nn.Module, x: Tensor, context: Context, past: BlockState | None, step: int) -> tuple[Tensor, BlockState]:
        """x after a block at a depth step, and the block's state; with checkpointing, taps and inspection."""
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
        raise TypeError(f"{type(self).__name__} does not define its number of steps: define steps.")

    @property
    def shared(self) -> bool:
        """Whether every step applies the same block."""
        return False

    @property
    def ponders(self) -> int | None:
        """The largest number of steps of a token, if it varies by token; None if all tokens take the same number."""
        return None

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        """The module with the blocks, which are made by calling block(layer)."""
        raise TypeError(f"{type(self).__name__} builds no blocks: define build(block, sizes).")


def checkpointed(block: nn.Module, x: Tensor, context: Context, past: BlockState | None, step: int) -> tuple[Tensor, BlockState]:
    """x after a block, of which only the input is saved; the backward pass recomputes the rest, with the same dropout."""
    before: dict[str, Tensor] = dict(context.losses)
    decisions = Decisions()

    def through(x: Tensor) -> tuple[Tensor, BlockState, dict[str, Tensor]]:
        if step % RELEASE_EVERY == 0 and on_host(x) and not torch.compiler.is_compiling():
            release_memory()
        inside = replace(context, losses=dict(before)).with_channels(decisions)  # the second pass must not add its losses again
        y, state = block(x, inside, past, step)
        return y, state, inside.losses

    y, state, losses = checkpoint(through, x, use_reentrant=False, preserve_rng_state=True)
    context.losses.update(losses)
    return y, state
