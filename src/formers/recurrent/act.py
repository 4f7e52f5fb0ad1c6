"""Adaptive Computation Time: a recurrent layer with a variable number of steps per token (Graves, 2016).

s^n = S(s^{n-1}, [x_t; 1{n=1}])     s^0 = s_{t-1}; S is a cell of cells.py, and the concatenated flag marks the first step             E45
s_t = sum_n p^n s^n,  y_t = h_t     weights p^n and halting as in depth/halting.py, from the new h; for an LSTM both h and c            E46
cost = ponder * mean of N + R       over the real tokens                                                                               E47

The mean state is passed to the next token. All tokens of a row are projected at once, W [x; flag] = W_x x + flag w; the rest is a loop
over tokens and steps. Without gradients, rows that have halted are not computed any more.

With `act="none"` there is no halting: always `steps` steps, and the last state is the output; steps=1 is the plain cell on [x_t; 1].
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.attend import Verdict
from formers.attention.multihead import Attention
from formers.core import Context, RecurrentMemory, Sizes
from formers.core.devices import readable
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
    is_inspected,
    may_skip,
    stack_tokens,
)
from formers.patterns import Causal, Pattern
from formers.recurrent.cells import STATES, Cell, RecurrentWeights, States, advance
from formers.recurrent.final_states import FinalStates
from formers.recurrent.layer import in_float32, past_states, run
from formers.score.base import ScoreModule

ROWS = 8
"""Rows are dropped in multiples of this: smaller products take as long, and torch rounds them differently."""


class Pondering(Attention):
    """A recurrent cell that is applied to each token until it halts, at most `steps` times."""

    cell: Cell = "tanh"
    steps: PositiveInt
    """The largest number of steps."""
    epsilon: Epsilon = 0.01
    """A token halts when its halting probabilities sum to 1 - epsilon."""
    ponder: Price = 0.01
    """The ponder cost: this times the mean of N + R is added to the loss."""
    bias: Bias = 1.0
    """The initial bias of the halting unit: the larger it is, the earlier tokens halt."""
    act: Literal["graves", "t2t", "none"] = "graves"

    @property
    def carries(self) -> bool:
        return True

    @property
    def ponders(self) -> int | None:
        return None if self.act == "none" else self.steps

    @property
    def allowed_patterns(self) -> tuple[type[Pattern], ...]:
        return (Causal,)

    def final_widths(self, sizes: Sizes) -> tuple[int, ...]:
        return (sizes.dim,) * STATES[self.cell]

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return PonderingLayer(sizes.dim, self) if self.act == "none" else HaltingLayer(sizes.dim, self, self.act)


class PonderingLayer(nn.Module):
    """A cell on flagged inputs that takes all of its steps for every token."""

    def __init__(self, dim: int, part: Pondering) -> None:
        super().__init__()
        self.part, self.dim = part, dim
        self.recurrence = RecurrentWeights(part.cell, dim + 1, dim)

    def forward(self, x: Tensor, context: Context, past: RecurrentMemory | None, step: int) -> tuple[Tensor, RecurrentMemory | None]:
        """y (batch, length, dim) for x (batch, length, dim), and the state after each row's last real token."""
        states = self.recurrence.zeros(x) if past is None else past_states(past, self.part.cell, self.dim)
        if self.part.act == "none" and self.part.steps == 1:
            y, states = run(self.recurrence, F.pad(x, (0, 1), value=1.0), states, context.valid)
        else:
            y, states = in_float32(self.recurrence, x, states, lambda x, states: self.rows(x, states, context, step))
        if context.watch is not None:
            about = f"token by token, {'at the most ' if self.part.ponders else ''}{self.part.steps} steps each"
            context.watch.note("attention executors", step, lambda: (Verdict("loop", True, about, None),))
        final: FinalStates | None = context.channels.get(FinalStates)
        if final is not None:
            final.append(states)
        return y, RecurrentMemory.of(states) if context.keep else None

    def rows(self, x: Tensor, states: States, context: Context, step: int) -> tuple[Tensor, States]:
        """The outputs for all tokens of rows x, one after the other, beginning with `states`; and the final states."""
        drive = self.drive(x)
        found = []
        for t in range(x.shape[1]):
            current = states
            for n in range(self.part.steps):
                current = self.cell_step(drive[:, t], current, n)
            states = current if context.valid is None else _where(context.valid[:, t], current, states)
            found.append(states[0])
        return torch.stack(found, dim=1), states

    def drive(self, x: Tensor) -> Tensor:
        """W_x x + b for all tokens."""
        return F.linear(x, self.recurrence.weight_ih_l0[:, :-1].to(x.dtype), self.recurrence.bias_ih_l0.to(x.dtype))

    def cell_step(self, drive: Tensor, states: States, n: int) -> States:
        """The states after step n = 0, 1, ... of a token."""
        weights = self.recurrence
        if n == 0:
            drive = drive + weights.weight_ih_l0[:, -1].to(drive.dtype)
        return advance(weights.cell, drive, states, weights.weight_hh_l0.to(drive.dtype), weights.bias_hh_l0.to(drive.dtype))  # E45


class HaltingLayer(PonderingLayer):
    """A PonderingLayer with a halting unit."""

    skipping = True
    """Whether evaluation skips rows that have halted; the output is the same."""

    def __init__(self, dim: int, part: Pondering, act: Act) -> None:
        super().__init__(dim, part)
        self.act: Act = act
        self.unit = nn.Linear(dim, 1)
        nn.init.zeros_(self.unit.weight)  # initially the halting probability does not depend on the state
        nn.init.constant_(self.unit.bias, part.bias)

    def rows(self, x: Tensor, states: States, context: Context, step: int) -> tuple[Tensor, States]:
        drive, real = self.drive(x), context.valid
        every_row = torch.ones(len(x), dtype=torch.bool, device=x.device)
        compute = (
            self.run_steps_skipping
            if self.skipping and may_skip(x, context, self.training)
            else partial(self.run_steps, whole=is_inspected(context.watch))
        )
        found, halting, seen = [], [], []
        for t in range(x.shape[1]):
            running = every_row if real is None else real[:, t]
            means, done, h = compute(drive[:, t], states, running)
            states = means if real is None else _where(running, means, states)
            found.append(states[0])
            halting.append(done)
            seen.append(h)
        account(context, step, stack_tokens(halting), self.part.ponder, real)  # E47
        if context.watch is not None:
            context.watch.note(HALTING, step, lambda: torch.stack([self.filled(h, x) for h in seen], dim=1))
        return torch.stack(found, dim=1), states

    def halting(self, h: Tensor) -> Tensor:
        """h^n (rows,) of the new states (rows, dim)."""
        return torch.sigmoid(F.linear(h, self.unit.weight.to(h.dtype), self.unit.bias.to(h.dtype))).squeeze(-1)

    def run_steps(self, drive: Tensor, states: States, running: Tensor, whole: bool) -> tuple[States, Halting, list[Tensor]]:
        """The mean states of a token, its halting statistics, and h of each step, computed for all rows until all have halted.

        whole: compute every step, even if all rows have halted.
        """
        halting, part, seen = begin(running, drive.dtype), self.part, []
        means = tuple(torch.zeros_like(s) for s in states)
        for n in range(part.steps):
            states = self.cell_step(drive, states, n)
            h = self.halting(states[0])
            seen.append(h.masked_fill(~halting.running, torch.nan))
            p, halting = halting.step(h, part.epsilon, last=n == part.steps - 1, act=self.act)
            means = tuple(add_weighted(m, s, p, self.act) for m, s in zip(means, states, strict=True))  # E46
            if not whole and readable(drive) and not bool(halting.running.any()):
                break
        return means, halting, seen

    def run_steps_skipping(self, drive: Tensor, states: States, running: Tensor) -> tuple[States, Halting, list[Tensor]]:
        """The same, but each step is computed only for rows that have not halted, rounded up to a multiple of ROWS."""
        part = self.part
        out, done = tuple(torch.zeros_like(s) for s in states), begin(running, drive.dtype)
        rows, means, halting = torch.arange(len(drive), device=drive.device), out, done
        for n in range(part.steps):
            count = int(halting.running.sum())
            if not count:
                break
            if (size := -(-count // ROWS) * ROWS) < len(rows):
                out, done = _put(out, rows, means), done.put(rows, halting)
                index = torch.argsort(halting.running.logical_not().to(torch.uint8), stable=True)[:size]
                rows, drive, states, means, halting = (
                    rows[index],
                    drive[index],
                    _rows(states, index),
                    _rows(means, index),
                    halting.rows(index),
                )
            states = self.cell_step(drive, states, n)
            p, halting = halting.step(self.halting(states[0]), part.epsilon, last=n == part.steps - 1, act=self.act)
            means = tuple(add_weighted(m, s, p, self.act) for m, s in zip(means, states, strict=True))
        return _put(out, rows, means), done.put(rows, halting), []

    def filled(self, seen: list[Tensor], x: Tensor) -> Tensor:
        """h (batch, steps) of a token, NaN for steps that were not taken."""
        rest = x.new_full((len(x), self.part.steps - len(seen)), torch.nan)
        return torch.cat([torch.stack(seen, dim=1), rest], dim=1) if seen else rest


def _where(real: Tensor, new: States, old: States) -> States:
    return tuple(torch.where(real[:, None], a, b) for a, b in zip(new, old, strict=True))


def _rows(states: States, rows: Tensor) -> States:
    return tuple(s.index_select(0, rows) for s in states)


def _put(into: States, rows: Tensor, values: States) -> States:
    return tuple(a.index_copy(0, rows, b) for a, b in zip(into, values, strict=True))
