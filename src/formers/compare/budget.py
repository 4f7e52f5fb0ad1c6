"""What members have in equal measure: time, steps, tokens or FLOPs.

Time is minutes on the clock, evaluations and checkpoints on the way included. Tokens and FLOPs become steps, by what a step of the member
reads and computes: tokens of padded rows as a step reads them, FLOPs of matrix products in a forward and a backward pass. The warm-up of
the learning rate follows: at most a tenth of the budget, in steps or in time.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from formers.core import FormersError
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.explain import runs_token_by_token
from formers.model import Spec
from formers.training import Task

Equal = Literal["time", "steps", "tokens", "flops"]
BATCHES = 20
"""Batches of a task that are looked at to know how long its rows are."""
COUNTED = (2, 4)
"""The lengths that a model is counted at which computes rows token by token; longer ones lie on their line."""


class Budget(NamedTuple):
    """So much of one thing for each run."""

    equal: Equal
    amount: float

    @property
    def words(self) -> str:
        """The budget in words."""
        if self.equal == "time":
            return f"{self.amount:g} minutes"
        return f"{self.amount:.3g} FLOPs" if self.equal == "flops" else f"{self.amount:,.0f} {self.equal}"

    def options(self, task: Task, batch: int) -> list[str]:
        """The budget as options of `formers train`, for a task and the rows of a batch."""
        return ["--minutes", f"{self.amount:g}"] if self.equal == "time" else ["--steps", str(self.steps(task, batch))]

    def steps(self, task: Task, batch: int) -> int:
        """The steps that the budget has room for; a budget smaller than a step is refused."""
        if self.equal == "steps":
            return round(self.amount)
        each = step_tokens(task, batch) if self.equal == "tokens" else step_flops(task, batch)
        if self.amount < each:
            raise FormersError(f"a step of {task.spec.name} takes {each:.3g} {self.equal}, and the budget is {self.amount:.3g}: give more.")
        return int(self.amount / each)


def budget_of(equal: str | None, amount: float | None, minutes: float | None, steps: int | None) -> Budget:
    """The one budget that is given: --minutes, --steps, or --equal with --budget."""
    given = [name for name, value in {"--minutes": minutes, "--steps": steps, "--budget": amount}.items() if value is not None]
    if (equal is None) != (amount is None):
        raise FormersError("--equal says of what, and --budget how much: give both of them, or neither.")
    if len(given) != 1:
        raise FormersError("a comparison needs one budget for all: give --minutes, --steps, or --equal with --budget.")
    kinds: dict[str, Equal] = {"time": "time", "steps": "steps", "tokens": "tokens", "flops": "flops"}
    chosen = Budget("time", minutes) if minutes is not None else Budget("steps", steps) if steps is not None else None
    if chosen is None:
        assert equal is not None
        assert amount is not None
        chosen = Budget(kinds[equal], amount)
    if not 0 < chosen.amount < float("inf") or (chosen.equal == "steps" and chosen.amount != int(chosen.amount)):
        raise FormersError(f"a budget of {chosen.amount:g} cannot be spent: give a number above 0, of steps a whole one.")
    return chosen


def widths(task: Task, batch: int) -> tuple[float, float]:
    """The mean length of a batch's padded rows, and that of their sources; the same where there is no source."""
    batches = [task.batches.train_batch(batch, 0, step, slice(0, batch)) for step in range(BATCHES)]
    side = "target" if "target" in batches[0] else "tokens"
    read = [each[side].shape[1] for each in batches]
    source = [each["source"].shape[1] for each in batches] if "source" in batches[0] else read
    return sum(read) / len(read), sum(source) / len(source)


def step_tokens(task: Task, batch: int) -> float:
    """Tokens that a step reads, padding included; of an encoder-decoder, those of the target."""
    return batch * widths(task, batch)[0]


def step_flops(task: Task, batch: int) -> float:
    """FLOPs of a training step, at the mean length of its rows; of an encoder-decoder, at the mean of both sides."""
    return batch * row_flops(task.spec, max(2, round(sum(widths(task, batch)) / 2)))


def row_flops(spec: Spec, length: int) -> float:
    """FLOPs of a training step over one row."""
    costs = Costs(spec)
    if not runs_token_by_token(spec) or length <= COUNTED[1]:
        return float(sum(costs.training_flops(length).values()))
    few, more = (sum(costs.training_flops(n).values()) for n in COUNTED)
    return more + (more - few) / (COUNTED[1] - COUNTED[0]) * (length - COUNTED[1])
