"""Scores of exercises, whose answers are right or wrong.

accuracy = right symbols / symbols        a symbol is a target, or all the places of a step: it is right if each of them is
exact    = wholly right rows / rows       1 - exact is the sequence error of Graves (2016)

The end of an answer is one of its symbols. Who writes tells a symbol from the right ones before it. A row is right in that way just if it
is what the model would write, taking the likeliest symbol each time: up to the first mistake both read the same. Rows that ask for nothing
do not count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.data.tasks import Exercised
from formers.model import Model, evaluating
from formers.model.model import Output
from formers.training.score import Figures, Score, likeliest


class Exact(NamedTuple):
    """The scores of some rows."""

    accuracy: float
    exact: float
    rows: int


class ExactScore(Score):
    """Of an exercise: the shares of right symbols and of right rows."""

    rows = "rows"
    extra = ("symbols", "right", "exact", "read")

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.judged: list[tuple[int, int]] = []
        """Of each row that was judged here, in order: its symbols, and how many are right."""

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        symbols, right = counts(self.model, targets, out)
        self.judged += list(zip(symbols.tolist(), right.tolist(), strict=True))
        self.sums["symbols"] += int(symbols.sum())
        self.sums["right"] += int(right.sum())
        self.sums["exact"] += int(((right == symbols) & (symbols > 0)).sum())
        self.sums["read"] += len(targets)

    def further(self) -> Figures:
        return {"accuracy": self.sums["right"] / self.sums["symbols"], "exact": self.sums["exact"] / self.sums["rows"]}

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None) -> str:
        exercise, read = batches.exercise, int(self.sums["read"])
        span = exercise.span(part)
        hard = f"{exercise.dial} {span[0]}" + (f" to {span[-1]}" if len(span) > 1 else "")
        share = f"all {exercise.rows:,}" if read >= exercise.rows else f"the first {read:,} of the {exercise.rows:,}"
        how = "; a symbol is told from the right ones before it" if self.model.spec.head.writes else ""
        return f"{share} rows of {part}, {hard}{how}"

    def by_difficulty(self, difficulty: Tensor) -> dict[int, Exact]:
        """The scores of the rows of each difficulty, given that of every row (rows,); without rows that ask for nothing."""
        found: dict[int, list[tuple[int, int]]] = {}
        for hard, (symbols, right) in zip(difficulty.tolist(), self.judged, strict=False):
            if symbols:
                found.setdefault(hard, []).append((symbols, right))
        return {hard: _exact(found[hard]) for hard in sorted(found)}


@torch.no_grad()
def by_difficulty(model: Model, batches: Any, part: str = "valid", size: int = 64) -> dict[int, Exact]:
    """The scores of a model on an exercise, for the rows of each difficulty of a part."""
    assert isinstance(batches, Exercised)
    score, device = ExactScore(model), next(model.parameters()).device
    with evaluating(model):
        for batch in batches.eval_batches(size, part):  # type: ignore[attr-defined]
            score.judge(batch["targets"], model(**{name: value.to(device) for name, value in batch.items()}))
    return score.by_difficulty(batches.difficulty(part))


def counts(model: Model, targets: Tensor, out: Output) -> tuple[Tensor, Tensor]:
    """How many symbols each row (rows,) asks for, and how many of them the model tells right."""
    counted = targets != IGNORED
    hit = ~counted
    hit[counted] = likeliest(model, out, counted) == targets[counted]
    if targets.dim() == 1:
        return counted.long(), (hit & counted).long()
    if targets.dim() == 3:  # several places a step
        counted, hit = counted.any(dim=2), hit.all(dim=2)
    return counted.sum(dim=1), (hit & counted).sum(dim=1)


def _exact(rows: list[tuple[int, int]]) -> Exact:
    symbols, right = (sum(each) for each in zip(*rows, strict=True))
    return Exact(right / symbols, sum(a == b for a, b in rows) / len(rows), len(rows))
