"""Scores of exercises, whose answers are right or wrong.

accuracy = right symbols / symbols        a symbol is a target, or all the places of a step: it is right if each of them is
exact    = wholly right rows / rows       1 - exact is the sequence error of Graves (2016)

The end of an answer is no symbol of it, but a row is right only if it ends where it should. Who writes tells a symbol from the right ones
before it. A row is right in that way just if it is what the model would write, taking the likeliest symbol each time: up to the first
mistake both read the same. Rows that ask for nothing do not count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.data.tasks import Exercised
from formers.model import Model, evaluating
from formers.model.model import Output
from formers.training.extent import Extent
from formers.training.score import Figures, Score, likeliest


class Exact(NamedTuple):
    """The scores of some rows."""

    accuracy: float
    exact: float
    rows: int


class Row(NamedTuple):
    """A row that was judged."""

    symbols: int
    right: int
    exact: bool
    """Whether all of it is right, its end too."""


class ExactScore(Score):
    """Of an exercise: the shares of right symbols and of right rows."""

    rows = "rows"
    extra = ("symbols", "right", "exact", "read")

    def __init__(self, model: Model, end: int | None = None) -> None:
        super().__init__()
        self.model, self.end = model, end
        self.judged: list[Row] = []
        """The rows that were judged here, in order."""

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        rows = counts(self.model, targets, out, self.end)
        self.judged += rows
        self.sums["symbols"] += sum(row.symbols for row in rows)
        self.sums["right"] += sum(row.right for row in rows)
        self.sums["exact"] += sum(row.exact for row in rows)
        self.sums["read"] += len(rows)

    def further(self) -> Figures:
        return {"accuracy": self.sums["right"] / self.sums["symbols"], "exact": self.sums["exact"] / self.sums["rows"]}

    def extent(self, batches: Any, part: str) -> Extent:
        return Extent(int(self.sums["read"]), batches.exercise.rows, "rows")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        span = batches.exercise.span(part)
        hard = f"{batches.exercise.dial} {span[0]}" + (f" to {span[-1]}" if len(span) > 1 else "")
        silent = int(self.sums["read"] - self.sums["rows"])
        how = "; a symbol is told from the right ones before it" if self.model.spec.head.writes else ""
        uncounted = f", of which {silent:,} ask for nothing and are not counted" if silent else ""
        return f"{self.extent(batches, part).of(part, sample)}, {hard}{uncounted}{how}"

    def by_difficulty(self, difficulty: Tensor) -> dict[int, Exact]:
        """The scores of the rows of each difficulty, given that of every row (rows,); without rows that ask for nothing."""
        found: dict[int, list[Row]] = {}
        for hard, row in zip(difficulty.tolist(), self.judged, strict=False):
            if row.symbols:
                found.setdefault(hard, []).append(row)
        return {hard: _exact(found[hard]) for hard in sorted(found)}


@torch.no_grad()
def by_difficulty(model: Model, batches: Any, part: str = "valid", size: int = 64) -> dict[int, Exact]:
    """The scores of a model on an exercise, for the rows of each difficulty of a part."""
    assert isinstance(batches, Exercised)
    score, device = ExactScore(model, batches.ending()), next(model.parameters()).device
    with evaluating(model):
        for batch in batches.eval_batches(size, part):  # type: ignore[attr-defined]
            score.judge(batch["targets"], model(**{name: value.to(device) for name, value in batch.items()}))
    return score.by_difficulty(batches.difficulty(part))


class Marks(NamedTuple):
    """What a model makes of the steps of a batch, all (rows, steps), bool."""

    counted: Tensor
    """What is asked for."""
    symbol: Tensor
    """The same without the end of an answer."""
    hit: Tensor
    """Right, or not asked for."""


def marks(model: Model, targets: Tensor, out: Output, end: int | None = None) -> Marks:
    """Which steps of a batch are asked for, and which are right; `end` is the token that ends an answer."""
    counted = targets != IGNORED
    hit = ~counted
    hit[counted] = likeliest(model, out, counted) == targets[counted]
    symbol = counted if end is None else counted & (targets != end)
    if targets.dim() == 3:  # several places a step
        counted, hit, symbol = counted.any(dim=2), hit.all(dim=2), symbol.any(dim=2)
    return Marks(*(each.view(len(targets), -1) for each in (counted, symbol, hit)))


def counts(model: Model, targets: Tensor, out: Output, end: int | None = None) -> list[Row]:
    """What the model makes of each row of a batch."""
    counted, symbol, hit = marks(model, targets, out, end)
    whole = hit.all(dim=1) & counted.any(dim=1)
    return [Row(*row) for row in zip(symbol.sum(dim=1).tolist(), (hit & symbol).sum(dim=1).tolist(), whole.tolist(), strict=True)]


def _exact(rows: list[Row]) -> Exact:
    symbols, right, exact = (sum(each) for each in zip(*rows, strict=True))
    return Exact(right / symbols, exact / len(rows), len(rows))
