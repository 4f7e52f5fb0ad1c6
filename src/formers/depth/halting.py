"""Adaptive Computation Time (Graves, 2016): when a computation halts, and the weight of each of its steps.

h^n = sigma(w . s^n + b)                         halting probability from the state after step n           E40
N = min { n : sum_{k<=n} h^k >= 1 - epsilon }    or M, the largest number of steps                         E41
p^n = h^n for n < N,    p^N = R = 1 - sum_{n<N} h^n                  the weights, which sum to 1          E42
cost = N + R                                                                                              E43
m^n = p^n s^n + (1 - p^n) m^{n-1}                the widespread variant: `t2t`                            E44

N is a constant for the gradient: d cost / d h^n is -1 before the last step and 0 there. The output is sum_n p^n s^n.

`t2t` is the variant of tensor2tensor and code derived from it: the sum must exceed 1 - epsilon, tokens still running after M steps get
no remainder, and states are interpolated, E44 from m^0 = 0, so that the resulting weights sum to less than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor, nn

from formers.core.context import Context, Watch
from formers.core.devices import readable
from formers.core.precision import without_autocast

HALTING, STEPS, REMAINDER = "halting", "ponder steps", "remainder"
"""Suffixes of the names of recorded values: halting probabilities h (batch, length) of a step, or (batch, length, steps) of all, NaN for
tokens that halted earlier; N (batch, length); and R (batch, length). N and R of padding are 0."""
Act = Literal["graves", "t2t"]
Epsilon = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A token halts when its halting probabilities sum to 1 - epsilon."""
Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
"""The ponder cost: this times the mean of N + R is added to the loss."""
Bias = FiniteFloat
"""The initial bias of the halting unit: the larger it is, the earlier tokens halt."""


@dataclass(frozen=True)
class Halting:
    """The halting statistics of independent items, e.g. tokens; all tensors have the same shape."""

    running: Tensor
    """bool: items that have not halted."""
    total: Tensor
    """The sum of h over the steps before the last."""
    remainder: Tensor
    """R; 0 while an item is running."""
    steps: Tensor
    """The number of steps taken; N at the end."""

    @property
    def cost(self) -> Tensor:
        """N + R of each item; 0 for items that never ran."""
        return self.steps + self.remainder  # E43

    def step(self, h: Tensor, epsilon: float, last: bool, act: Act = "graves") -> tuple[Tensor, Halting]:
        """The weight p of a step with the halting probabilities h, and the statistics after it; `last`: there is no further step."""
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
        """The statistics of the rows with the given indices."""
        return Halting(*(each.index_select(0, which) for each in self._all()))

    def put(self, which: Tensor, values: Halting) -> Halting:
        """A copy with the rows of the given indices replaced."""
        return Halting(*(each.index_copy(0, which, value) for each, value in zip(self._all(), values._all(), strict=True)))

    def _all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.running, self.total, self.remainder, self.steps


def stack_tokens(each: Sequence[Halting]) -> Halting:
    """The statistics (rows, tokens) of a sequence of tokens, from those of each token (rows,)."""
    return Halting(*(torch.stack(tokens, dim=1) for tokens in zip(*(one._all() for one in each), strict=True)))


def begin(running: Tensor, dtype: torch.dtype) -> Halting:
    """The statistics before the first step; `running` (any shape, bool) marks the items to compute; sums are at least float32."""
    dtype = torch.promote_types(dtype, torch.float32)
    zero = torch.zeros(running.shape, dtype=dtype, device=running.device)
    return Halting(running, zero, zero, zero)


def halting_probability(unit: nn.Module, state: Tensor) -> Tensor:
    """h (...) of states (..., dim), in at least float32, also under autocast: sums of h decide when a token halts.

    The unit is called as a module, so that an adapter around it takes part.
    """
    with without_autocast(state):
        reached = unit(state.to(next(unit.parameters()).dtype)).squeeze(-1)
        return torch.sigmoid(reached.to(torch.promote_types(reached.dtype, torch.float32)))  # E40


def add_weighted(mean: Tensor, state: Tensor, p: Tensor, act: Act = "graves") -> Tensor:
    """The weighted mean (..., dim) of the states so far, with a further state of weight p (...) added."""
    weight = p[..., None].to(state.dtype)
    return mean + weight * state if act == "graves" else mean + weight * (state - mean)  # E44


def mean_cost(halting: Halting, real: Tensor | None) -> Tensor:
    """The mean of N + R over the items marked in `real`, or over all if it is None."""
    if real is None:
        return halting.cost.sum() / max(1, halting.cost.numel())
    return halting.cost.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def account(context: Context, step: int, halting: Halting, ponder: float, real: Tensor | None) -> None:
    """Adds the ponder cost, `ponder` times the mean of N + R, to the losses of a pass, and records N and R for an inspection."""
    if ponder:
        cost = ponder * mean_cost(halting, real)
        context.losses["ponder"] = context.losses["ponder"] + cost if "ponder" in context.losses else cost
    if context.watch is not None:
        context.watch.note(STEPS, step, lambda: halting.steps)
        context.watch.note(REMAINDER, step, lambda: halting.remainder)


def may_skip(x: Tensor, context: Context, training: bool) -> bool:
    """Whether halted tokens can be skipped: no gradients, no inspection of all steps, and values that can be read without a wait."""
    return not training and not torch.is_grad_enabled() and not is_inspected(context.watch) and readable(x)


def is_inspected(watch: Watch | None) -> bool:
    """Whether an inspection records more than N and R."""
    return watch is not None and not watch.records_only(STEPS, REMAINDER)
