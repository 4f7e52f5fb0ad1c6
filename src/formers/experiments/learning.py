"""Training runs of the experiments: models trained on the same rows with the same settings, evaluated by difficulty.

A setup is a model and its data; a line is the result of one seed. Adam with a warm-up and a cosine to 0, gradients clipped at 1.
Evaluated rows are held out, except the easiest, of which there are too few to be split (data/tasks/exercise.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.bench.progress import working
from formers.bench.timing import one_thread
from formers.core import FormersError, Watch
from formers.core.host import to_device, to_host
from formers.data.batches import Batch
from formers.data.tasks import Exercised
from formers.depth.halting import STEPS
from formers.evaluation.exact_match import RowResult, row_results
from formers.model import Model, Spec, build, evaluating
from formers.training.device import pick_device

POINTS = 60
"""Number of losses saved per training: means of as many stretches."""


class TrainingSettings(NamedTuple):
    """Training settings: steps, rows per step, learning rate, warm-up, device."""

    steps: int
    batch: int
    rate: float
    warmup: int = 100
    device: str = "cpu"

    def words(self) -> str:
        return f"{self.steps:,} steps of {self.batch} rows, Adam {self.rate:g}, warm-up {self.warmup}, cosine to 0, gradients clipped at 1"


class Setup(NamedTuple):
    """A model, its data and its training settings."""

    spec: Spec
    batches: Any
    training: TrainingSettings


class Evaluated(NamedTuple):
    """The results of a model on rows."""

    difficulty: Tensor
    """(rows,)"""
    rows: list[RowResult]
    ponder: Tensor | None
    """(rows,), the mean number of steps of a row's positions, if the model has adaptive computation."""
    asked: Tensor | None
    """(rows,), the steps of a row's last position, which is the question of a story."""

    def figures(self) -> dict[str, Any]:
        """Metrics of all rows and by difficulty."""
        by = {hard: self._some(self.difficulty == hard) for hard in sorted(set(self.difficulty.tolist()))}
        found = self._some(torch.ones_like(self.difficulty, dtype=torch.bool))
        if self.ponder is not None:
            both = torch.stack([self.ponder.double(), self.difficulty.double()])
            found["correlation"] = torch.corrcoef(both)[0, 1].item() if both.std(dim=1).min() > 0 else 0.0
        return {**found, "by": by}

    def _some(self, rows: Tensor) -> dict[str, Any]:
        some = [row for row, wanted in zip(self.rows, rows.tolist(), strict=True) if wanted]
        symbols, right, exact = (sum(each) for each in zip(*some, strict=True))
        found = {"accuracy": right / symbols, "exact": exact / len(some)}
        steps = {"ponder": self.ponder, "asked": self.asked}
        return found | {name: each[rows].double().mean().item() for name, each in steps.items() if each is not None}


def train_all(
    setups: Mapping[str, Setup], seeds: int, parts: Sequence[str], line: Callable[[dict[str, Any]], None] = lambda found: None
) -> list[dict[str, Any]]:
    """A line for each setup and seed 0, 1, ...: the metrics of the evaluated parts; `line` is called with each."""
    if seeds < 1:
        raise FormersError(f"seeds={seeds} is too small: give at least 1.")
    lines = []
    with one_thread():
        for name, setup in setups.items():
            for seed in range(seeds):
                lines.append(train_setup(name, setup, seed, parts))
                line(lines[-1])
    return lines


def train_setup(name: str, setup: Setup, seed: int, parts: Sequence[str]) -> dict[str, Any]:
    """The line of a setup and a seed."""
    start = time.process_time()
    with working(f"{name}, seed {seed}", setup.training.steps) as advance:
        draw = partial(setup.batches.train_batch, setup.training.batch, seed)
        model, losses = train_model(setup.spec, setup.training, seed, draw, partial(advance, 1))
    seconds = time.process_time() - start
    found: dict[str, Any] = {"way": name, "seed": seed, "parameters": model.parameter_count(), "seconds": seconds}
    for part in parts:
        found[part] = evaluate_model(model, setup.batches, part).figures()
    found["losses"] = _thinned(losses)
    return found


def train_model(
    spec: Spec, training: TrainingSettings, seed: int, draw: Callable[[int], Batch], tick: Callable[[], None] = lambda: None
) -> tuple[Model, list[float]]:
    """Trains a model; returns it with the loss of each step. `draw` returns the batch of a step."""
    if training.steps < 1:
        raise FormersError(f"steps={training.steps} trains nothing: give at least 1.")
    torch.manual_seed(seed)
    where = pick_device(training.device)
    model = build(spec).train().to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.rate, betas=(0.9, 0.98))
    warmup = min(training.warmup, training.steps // 5)
    losses = []
    for step in range(training.steps):
        warm = min(1.0, (step + 1) / max(warmup, 1))
        for group in optimizer.param_groups:
            group["lr"] = training.rate * warm * (1 + math.cos(math.pi * step / training.steps)) / 2
        optimizer.zero_grad()
        loss = model(**to_device(draw(step), where), update=step).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tick()
    return model.eval(), losses


@torch.no_grad()
def evaluate_model(model: Model, batches: Any, part: str, size: int = 250) -> Evaluated:
    """The results of a model on the rows of a part."""
    end = batches.ending() if isinstance(batches, Exercised) else None
    rows, ponder, asked = [], [], []
    where = next(model.parameters()).device
    with evaluating(model):
        for batch in batches.eval_batches(size, part):
            watch = Watch(STEPS)
            rows += row_results(model, batch["targets"], model(**to_device(batch, where), watch=watch), end)
            for steps in to_host({str(layer): taken for layer, taken in watch.notes.get(STEPS, {}).items()}).values():
                lengths = batch["mask"].sum(dim=1)
                ponder.append(steps.sum(dim=1) / lengths)
                asked.append(steps.gather(1, lengths[:, None] - 1).squeeze(1))
    return Evaluated(batches.difficulty(part), rows, *(torch.cat(each) if each else None for each in (ponder, asked)))


def of(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> list[float]:
    """A metric of every seed of a setup: of(lines, "act", "valid", "exact")."""
    found = []
    for line in lines:
        if line["way"] == way:
            value: Any = line
            for name in path:
                value = value[name]
            found.append(float(value))
    return found


def names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the setups of a table."""
    return list(dict.fromkeys(line["way"] for line in lines))


def mean(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> float:
    """The mean over the seeds."""
    return fmean(of(lines, way, *path))


def middle(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> float:
    """The median over the seeds."""
    return median(of(lines, way, *path))


def _thinned(losses: list[float]) -> list[tuple[float, float]]:
    """The steps and mean losses of equal stretches."""
    width = max(1, len(losses) // POINTS)
    return [(start + width, fmean(losses[start : start + width])) for start in range(0, len(losses) - width + 1, width)]
