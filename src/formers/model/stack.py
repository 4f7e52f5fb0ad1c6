"""A stack: positions, the blocks as the depth applies them, and the final norm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Context, Range
from formers.core.context import norm
from formers.depth.adaptive import AdaptiveBlocks
from formers.depth.base import States
from formers.depth.step_input import StepInput
from formers.depth.taps import Taps
from formers.model.block import Block
from formers.model.reversible import HalfStep, run_reversible
from formers.model.skipping import skip_halted
from formers.model.spec import Spec
from formers.position.offset import RandomStarts
from formers.residual import Reversible


class Stack(nn.Module):
    """Positions, then the blocks as the depth applies them, then the final norm if the residual has one.

    A reversible residual has two halves, which pass through the sublayers by half steps instead of through blocks.

    Extra vectors are prepended to the tokens and removed at the end. Patterns count them; positions do not.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("extra",)

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.randn(spec.extra, spec.dim) * spec.spread) if spec.extra else None
        self.position = spec.position.build(spec.sizes)
        self.drop = nn.Dropout(spec.dropout)
        self.common = spec.attention.common(spec.sizes)
        self.common_score = spec.score.common(spec.sizes)
        self.depth = spec.depth.build(lambda layer: Block(spec, layer, self.common, self.common_score), spec.sizes)
        self.final = spec.residual.build_final(spec.dim)
        self.every_step = spec.position.every_step
        self.reversible = spec.residual if isinstance(spec.residual, Reversible) else None
        if isinstance(self.depth, AdaptiveBlocks):
            self.depth.skip_halted = skip_halted

    def forward(self, x: Tensor, context: Context, past: States = ()) -> tuple[Tensor, States]:
        """Hidden states (batch, length, width) and the states of all steps; losses are in context.losses, taps in their channel."""
        starts = context.channels.get(RandomStarts, RandomStarts())
        positions = self.position.shifted(context.positions, x.shape[0], x.device, starts)
        extra = 0 if self.extra is None else len(self.extra)
        if self.extra is not None:
            x, context = with_extra(self.extra, x, context)
        taps: Taps | None = context.channels.get(Taps)
        if taps is not None:
            taps.read = lambda x: self.final(x[:, extra:] if extra else x)
        step_input = StepInput(self.position, self.drop, positions, self.every_step, extra)
        if self.reversible is None:
            x, states = self.depth(x, context, past, step_input)
        else:
            x, states = self.run_half_steps(step_input(x, 0), context, past, self.reversible)
        if context.watch is not None:
            context.watch.note("stream norm", self.depth.steps, partial(norm, x))
        return self.final(x[:, extra:] if extra else x), states if context.keep else ()

    def run_half_steps(self, x: Tensor, context: Context, past: States, residual: Reversible) -> tuple[Tensor, States]:
        """x after the half steps of a reversible stack, and the states of all steps."""
        halves = self.half_steps(past)
        first, second, entries = run_reversible(halves, x, context, list(self.parameters()), residual.end)
        states = [tuple(e for half, e in zip(halves, entries, strict=True) if half.step == t) for t in range(self.depth.steps)]
        return residual.end(first, second).to(x.dtype), tuple(states)

    def half_steps(self, past: States) -> list[HalfStep]:
        """The sublayers of all steps in order, each with its past state."""
        found: list[HalfStep] = []
        for t in range(self.depth.steps):
            block = self.depth.blocks[t % len(self.depth.blocks)]
            assert isinstance(block, Block)
            before = block.check(past[t] if past else None)
            found.extend(HalfStep(block, i, t, state) for i, state in enumerate(before))
        return found


def with_extra(extra: Tensor, x: Tensor, context: Context) -> tuple[Tensor, Context]:
    """Extra vectors (count, dim) before tokens x (batch, length, dim), and the context of both."""
    count = len(extra)
    x = torch.cat([extra.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
    valid = None if context.valid is None else F.pad(context.valid, (count, 0), value=True)
    return x, replace(context, positions=Range(0, x.shape[1]), valid=valid)
