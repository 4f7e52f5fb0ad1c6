"""Adaptive depth: one block is applied to each token until it halts (Dehghani et al., 2018, section 2.2, after Graves, 2016).

s^t = Block(s^{t-1} + P^t)       for tokens that have not halted; the others keep their state             (E14, E100)
y = sum_t p^t s^t                weights and halting as in depth/halting.py, separately for each token     E40-E43

A halted token still provides keys and values at all later steps, from its last state. So a batch equals its rows, and a later token may
take more steps than earlier ones. On the host, steps end when all tokens have halted, and evaluation does not compute halted tokens
(model/skipping.py). Off the host both would be a wait at every step: all steps are computed, with the same output.

`act="t2t"` is tensor2tensor's variant: the input of the halting unit is the state before the block, with positions added; halted tokens
are still transformed and attended to, and the output is the interpolation E44.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Context, Sizes
from formers.core.devices import readable
from formers.depth.base import BlockState, Depth, DepthModule, States
from formers.depth.halting import (
    HALTING,
    Act,
    Bias,
    Epsilon,
    Halting,
    Price,
    account,
    add_weighted,
    begin,
    halting_probability,
    is_inspected,
    may_skip,
)
from formers.depth.step_input import StepInput

Averaged = tuple[Tensor, Halting, list[BlockState]]
"""The output, the halting statistics of every token, and the states of the steps."""
SkipHalted = Callable[["AdaptiveBlocks", Tensor, Context, States, StepInput, Halting], Averaged]


class Adaptive(Depth):
    """One block, applied to each token until it halts, at most `layers` times."""

    layers: PositiveInt
    """The largest number of steps."""
    epsilon: Epsilon = 0.01
    """A token halts when its halting probabilities sum to 1 - epsilon."""
    ponder: Price = 0.01
    """The ponder cost: this times the mean of N + R is added to the loss."""
    bias: Bias = 1.0
    """The initial bias of the halting unit: the larger it is, the earlier tokens halt."""
    act: Act = "graves"

    @property
    def steps(self) -> int:
        return self.layers

    @property
    def shared(self) -> bool:
        return True

    @property
    def ponders(self) -> int:
        return self.layers

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        return AdaptiveBlocks(block(0), sizes.dim, self)


class AdaptiveBlocks(DepthModule):
    """Applies its block repeatedly, and computes the halting probabilities after each step."""

    skipping = True
    """Whether evaluation skips halted tokens, and stops when all have halted; the output is the same."""
    skip_halted: SkipHalted | None = None
    """A function that computes only the tokens that have not halted, for evaluation (model/skipping.py); None: compute all."""

    def __init__(self, block: nn.Module, dim: int, part: Adaptive) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block])
        self.steps, self.part = part.layers, part
        self.unit = nn.Linear(dim, 1)
        nn.init.zeros_(self.unit.weight)  # initially the halting probability does not depend on the state
        nn.init.constant_(self.unit.bias, part.bias)

    def forward(self, x: Tensor, context: Context, past: States, step_input: StepInput) -> tuple[Tensor, States]:
        real = context.valid
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
        halting = begin(running, x.dtype)
        skips = self.skipping and self.skip_halted is not None and may_skip(x, context, self.training)
        if self.part.act == "t2t":
            y, halting, states = self.interpolated(x, context, past, step_input, halting)
        elif skips:
            assert self.skip_halted is not None
            y, halting, states = self.skip_halted(self, x, context, past, step_input, halting)
        else:
            y, halting, states = self.averaged(x, context, past, step_input, halting)
        account(context, 0, halting, self.part.ponder, real)
        return y, tuple(states)

    def halting(self, state: Tensor) -> Tensor:
        """Halting probabilities h (...) of states (..., dim)."""
        return halting_probability(self.unit, state)

    def is_over(self, halting: Halting, context: Context) -> bool:
        """Whether all tokens have halted, and neither a state nor an inspection needs further steps; False where reading it would wait."""
        if not self.skipping or context.keep or is_inspected(context.watch) or not readable(halting.running):
            return False
        return not bool(halting.running.any())

    def averaged(self, state: Tensor, context: Context, past: States, step_input: StepInput, halting: Halting) -> Averaged:
        """sum_t p^t s^t, every step computed for all tokens; halted tokens keep their state."""
        y, part = torch.zeros_like(state), self.part
        states: list[BlockState] = [()] * self.steps
        for t in range(self.steps):
            new, states[t] = self.run_block(self.blocks[0], step_input(state, t), context, past[t] if past else None, t)
            h = self.halting(new)
            self.show(context, t, h, halting)
            state = torch.where(halting.running[..., None], new, state)
            p, halting = halting.step(h, part.epsilon, last=t == self.steps - 1)
            y = add_weighted(y, new, p)
            if self.is_over(halting, context):
                break
        return y, halting, states

    def interpolated(self, state: Tensor, context: Context, past: States, step_input: StepInput, halting: Halting) -> Averaged:
        """E44 over the states of all steps; all tokens are transformed until all have halted."""
        y = torch.zeros_like(state)
        states: list[BlockState] = [()] * self.steps
        for t in range(self.steps):
            x = step_input(state, t)
            h = self.halting(x)
            self.show(context, t, h, halting)
            state, states[t] = self.run_block(self.blocks[0], x, context, past[t] if past else None, t)
            p, halting = halting.step(h, self.part.epsilon, last=t == self.steps - 1, act="t2t")
            y = add_weighted(y, state, p, "t2t")
            if self.is_over(halting, context):
                break
        return y, halting, states

    def show(self, context: Context, t: int, h: Tensor, halting: Halting) -> None:
        """Records the halting probabilities of a step, NaN for tokens that halted earlier."""
        if context.watch is not None:
            context.watch.note(HALTING, t, lambda: h.masked_fill(~halting.running, torch.nan))
