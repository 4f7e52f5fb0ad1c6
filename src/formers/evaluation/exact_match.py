"""Metrics of exercises, whose answers are right or wrong.

accuracy = right symbols / symbols        a symbol is one target, or all places of one step, all of which must be right
exact    = right rows / rows              1 - exact is the sequence error of Graves (2016)

The end token of an answer is not a symbol, but a row is right only if the end token is. A language model predicts each symbol from the
right symbols before it (teacher forcing). A row is right exactly if greedy decoding would generate it: up to the first mistake both read
the same tokens. Rows without targets do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.core.devices import capabilities
from formers.core.host import to_device, to_host
from formers.data.tasks import Exercised
from formers.evaluation.coverage import Coverage
from formers.evaluation.metrics import Metrics, Results, top_class
from formers.model import Model, evaluating
from formers.model.model import Output


class ExactMatch(NamedTuple):
    """The metrics of a set of rows."""

    accuracy: float
    exact: float
    rows: int


class RowResult(NamedTuple):
    """The result of one row."""

    symbols: int
    right: int
    exact: bool
    """Whether all of it is right, including its end token."""


class ExactMatchMetrics(Metrics):
    """Of an exercise: the share of right symbols and the share of right rows."""

    rows = "rows"
    extra = ("symbols", "right", "exact", "read")

    def __init__(self, model: Model, end: int | None = None) -> None:
        super().__init__()
        self.model, self.end = model, end
        self.evaluated: list[RowResult] = []
        """The rows that this process evaluated, in order."""

    def figures(self, targets: Tensor, out: Output) -> dict[str, Tensor]:
        return {**super().figures(targets, out), "top": top_class(self.model, out, targets != IGNORED)}

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        super().add(targets, figures)
        rows = _rows(targets, figures["top"], self.end)
        self.evaluated += rows
        self.sums["symbols"] += sum(row.symbols for row in rows)
        self.sums["right"] += sum(row.right for row in rows)
        self.sums["exact"] += sum(row.exact for row in rows)
        self.sums["read"] += len(rows)

    def extra_results(self) -> Results:
        return {"accuracy": self.sums["right"] / self.sums["symbols"], "exact": self.sums["exact"] / self.sums["rows"]}

    def coverage(self, batches: Any, part: str) -> Coverage:
        return Coverage(int(self.sums["read"]), batches.exercise.rows, "rows")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        span = batches.exercise.span(part)
        hard = f"{batches.exercise.dial} {span[0]}" + (f" to {span[-1]}" if len(span) > 1 else "")
        silent = int(self.sums["read"] - self.sums["rows"])
        how = "; each symbol is predicted from the right ones before it" if self.model.spec.head.generates else ""
        uncounted = f", of which {silent:,} have no targets and are not counted" if silent else ""
        return f"{self.coverage(batches, part).of(part, sample)}, {hard}{uncounted}{how}"

    def by_difficulty(self, difficulty: Tensor) -> dict[int, ExactMatch]:
        """The metrics of the rows of each difficulty; difficulty (rows,); rows without targets are left out."""
        found: dict[int, list[RowResult]] = {}
        for hard, row in zip(difficulty.tolist(), self.evaluated, strict=False):
            if row.symbols:
                found.setdefault(hard, []).append(row)
        return {hard: _exact(found[hard]) for hard in sorted(found)}


@torch.no_grad()
def by_difficulty(model: Model, batches: Any, part: str = "valid", size: int = 64) -> dict[int, ExactMatch]:
    """The metrics of a model on an exercise, for each difficulty of a part."""
    assert isinstance(batches, Exercised)
    metrics, device = ExactMatchMetrics(model, batches.ending()), next(model.parameters()).device
    with evaluating(model):
        for batch in batches.eval_batches(size, part):  # type: ignore[attr-defined]
            if not capabilities(device).host:
                model.check_ids(batch)
            metrics.update(batch["targets"], model(**to_device(batch, device)))
    return metrics.by_difficulty(batches.difficulty(part))


class Correctness(NamedTuple):
    """Which steps of a batch a model predicts right; all (rows, steps), bool."""

    counted: Tensor
    """Steps that have a target."""
    symbol: Tensor
    """The same without the end token of an answer."""
    hit: Tensor
    """Right, or without a target."""


def correctness(model: Model, targets: Tensor, out: Output, end: int | None = None) -> Correctness:
    """Which steps of a batch have a target, and which are right; targets on the host; `end` is the token that ends an answer."""
    return _correctness(targets, to_host({"top": top_class(model, out, targets != IGNORED)})["top"], end)


def row_results(model: Model, targets: Tensor, out: Output, end: int | None = None) -> list[RowResult]:
    """The result of each row of a batch; targets on the host."""
    return _rows(targets, to_host({"top": top_class(model, out, targets != IGNORED)})["top"], end)


def _correctness(targets: Tensor, top: Tensor, end: int | None) -> Correctness:
    """From the most likely class (n,) of each target, on the host."""
    counted = targets != IGNORED
    hit = ~counted
    hit[counted] = top == targets[counted]
    symbol = counted if end is None else counted & (targets != end)
    if targets.dim() == 3:  # several places a step
        counted, hit, symbol = counted.any(dim=2), hit.all(dim=2), symbol.any(dim=2)
    return Correctness(*(each.view(len(targets), -1) for each in (counted, symbol, hit)))


def _rows(targets: Tensor, top: Tensor, end: int | None) -> list[RowResult]:
    counted, symbol, hit = _correctness(targets, top, end)
    whole = hit.all(dim=1) & counted.any(dim=1)
    return [RowResult(*row) for row in zip(symbol.sum(dim=1).tolist(), (hit & symbol).sum(dim=1).tolist(), whole.tolist(), strict=True)]


def _exact(rows: list[RowResult]) -> ExactMatch:
    symbols, right, exact = (sum(each) for each in zip(*rows, strict=True))
    return ExactMatch(right / symbols, exact / len(rows), len(rows))
