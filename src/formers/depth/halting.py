"""Adaptive Computation Time (Graves, 2016): when something stops, and how much each of its steps counts.

h^n = sigma(w . s^n + b)                         the halting unit's answer to the state after step n      E40
N = min { n : sum_{k<=n} h^k >= 1 - epsilon }    or M, the most steps there are                           E41
p^n = h^n for n < N,    p^N = R = 1 - sum_{n<N} h^n                  the weights, which sum to 1          E42
cost = N + R                                                                                              E43
m^n = p^n s^n + (1 - p^n) m^{n-1}                the widespread variant: `t2t`                            E44

N is a constant for the gradient: d cost / d h^n is -1 before the last step and 0 there. The answer is sum_n p^n s^n.

`t2t` is what tensor2tensor computes, and those who follow it: the sum must exceed 1 - epsilon, what is still running after M steps gets
no remainder, and states are interpolated, E44 from m^0 = 0, so that the weights they end up with sum to less than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor

from formers.core.compiler import concrete
from formers.core.context import Context, Watch

HALTING, STEPS, REMAINDER = "halting", "ponder steps", "remainder"
"""How the names of notes end that tell how long each token thinks: h (batch, length) of a step, or of all, (batch, length, steps), and not
a number where a token has halted before it; N (batch, length); and R (batch, length). N and R of padding are 0."""
Act = Literal["graves", "t2t"]
Epsilon = Annotated[float, Field(gt=0.0, lt=1.0)]
"""Who has spent 1 - epsilon halts."""
Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
"""What a step costs: this times the mean of N + R is added to the loss."""
Bias = FiniteFloat
"""Of the halting unit at the start: the larger, the sooner it halts."""


@dataclass(frozen=True)
class Halting:
    """What some things, each on its own, have spent on thinking so far; all tensors have one shape."""

    running: Tensor
    """bool: those that have not halted."""
    total: Tensor
    """The sum of the h of steps before the last."""
    remainder: Tensor
    """R; 0 while something is running."""
    steps: Tensor
    """How many steps each has taken: N in the end."""

    @property
    def cost(self) -> Tensor:
        """N + R of each; 0 where nothing ever ran."""
        return self.steps + self.remainder  # E43

    def step(self, h: Tensor, epsilon: float, last: bool, act: Act = "graves") -> tuple[Tensor, Halting]:
        """The weight p of a step whose halting probabilities are h, and what is spent behind it; `last`: there is no further step."""
        h = h.to(self.total.dtype)
        reached = self.total + h
        if act == "t2t":
            enough = reached > 1 - epsilon
        elif last:
            enough = torch.ones_like(self.running)
        else:
            enough = reached >= 1 - epsilon  # E41
        halts = self.running & enough
        goes_on = self.running & ~enough
        rest = 1 - self.total
        p = torch.where(halts, rest, torch.where(goes_on, h, 0.0))  # E42
        after = Halting(
            running=goes_on,
            total=torch.where(goes_on, reached, self.total),
            remainder=torch.where(halts, rest, self.remainder),
            steps=self.steps + self.running,
        )
        return p, after

    def rows(self, which: Tensor) -> Halting:
        """What the rows of these numbers have spent."""
        return Halting(*(each.index_select(0, which) for each in self._all()))

    def put(self, which: Tensor, values: Halting) -> Halting:
        """The same with what some rows have spent, put where they stand among all."""
        return Halting(*(each.index_copy(0, which, value) for each, value in zip(self._all(), values._all(), strict=True)))

    def _all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.running, self.total, self.remainder, self.steps


def beside(each: Sequence[Halting]) -> Halting:
    """What tokens (rows,) that came one after the other have spent, as (rows, tokens)."""
    return Halting(*(torch.stack(tokens, dim=1) for tokens in zip(*(one._all() for one in each), strict=True)))


def begin(running: Tensor, dtype: torch.dtype) -> Halting:
    """Nothing spent, where `running` (any shape, bool) says who is to think at all; sums are float32 at least."""
    dtype = torch.promote_types(dtype, torch.float32)
    zero = torch.zeros(running.shape, dtype=dtype, device=running.device)
    return Halting(running, zero, zero, zero)


def add_weighted(mean: Tensor, state: Tensor, p: Tensor, act: Act = "graves") -> Tensor:
    """The mean (..., dim) of states so far, with a further one that weighs p (...)."""
    weight = p[..., None].to(state.dtype)
    return mean + weight * state if act == "graves" else mean + weight * (state - mean)  # E44


def mean_cost(halting: Halting, real: Tensor | None) -> Tensor:
    """The mean of N + R over what is real, all of it where that is None."""
    if real is None:
        return halting.cost.sum() / max(1, halting.cost.numel())
    return halting.cost.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def account(context: Context, step: int, halting: Halting, ponder: float, real: Tensor | None) -> None:
    """Adds the price of thinking, `ponder` times the mean of N + R, to the losses of a pass, and records N and R for an inspection."""
    if ponder:
        cost = ponder * mean_cost(halting, real)
        context.losses["ponder"] = context.losses["ponder"] + cost if "ponder" in context.losses else cost
    if context.watch is not None:
        context.watch.note(STEPS, step, lambda: halting.steps)
        context.watch.note(REMAINDER, step, lambda: halting.remainder)


def may_skip(x: Tensor, context: Context, training: bool) -> bool:
    """Whether halted tokens can be left out: no gradients, no inspection of all steps, and tensors that hold numbers."""
    return not training and not torch.is_grad_enabled() and not is_inspected(context.watch) and concrete(x)


def is_inspected(watch: Watch | None) -> bool:
    """Whether an inspection records more of every step than N and R."""
    return watch is not None and not watch.only_wants(STEPS, REMAINDER)
