"""Learning experiments: models that learn the same rows in the same way, judged by how hard a row is.

A way is a model and what it learns from; a line is what one seed made of it. Adam with a warm-up and a cosine to 0, gradients clipped at 1.
What is judged are rows that were held out, but for the easiest, of which there are too few to be parted (data/tasks/exercise.py).
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
from formers.data.batches import Batch
from formers.data.tasks import Exercised
from formers.depth.halting import STEPS
from formers.evaluation.exact_match import RowResult, row_results
from formers.model import Model, Spec, build, evaluating

POINTS = 60
"""How many losses of a training are kept: means of as many stretches."""


class Course(NamedTuple):
    """How it is learnt."""

    steps: int
    batch: int
    rate: float
    warmup: int = 100

    def words(self) -> str:
        return f"{self.steps:,} steps of {self.batch} rows, Adam {self.rate:g}, warm-up {self.warmup}, cosine to 0, gradients clipped at 1"


class Way(NamedTuple):
    """Who learns, and from what."""

    spec: Spec
    batches: Any
    course: Course


class Judged(NamedTuple):
    """What a model tells of rows."""

    difficulty: Tensor
    """(rows,)"""
    rows: list[RowResult]
    ponder: Tensor | None
    """(rows,), the mean number of steps of a row's positions, where the model decides about it."""
    asked: Tensor | None
    """(rows,), the steps of a row's last position, which is the question of a story."""

    def figures(self) -> dict[str, Any]:
        """Of all rows and of those of each difficulty."""
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


def lessons(
    ways: Mapping[str, Way], seeds: int, parts: Sequence[str], line: Callable[[dict[str, Any]], None] = lambda found: None
) -> list[dict[str, Any]]:
    """A line for each way and seed 0, 1, ...: the figures of the parts that are judged; `line` is given each as it is found."""
    if seeds < 1:
        raise FormersError(f"seeds={seeds} is no number of runs: give at least 1.")
    lines = []
    with one_thread():
        for name, way in ways.items():
            for seed in range(seeds):
                lines.append(lesson(name, way, seed, parts))
                line(lines[-1])
    return lines


def lesson(name: str, way: Way, seed: int, parts: Sequence[str]) -> dict[str, Any]:
    """The line of a way and a seed."""
    start = time.process_time()
    with working(f"{name}, seed {seed}", way.course.steps) as advance:
        draw = partial(way.batches.train_batch, way.course.batch, seed)
        model, losses = learn(way.spec, way.course, seed, draw, partial(advance, 1))
    seconds = time.process_time() - start
    found: dict[str, Any] = {"way": name, "seed": seed, "parameters": model.parameter_count(), "seconds": seconds}
    for part in parts:
        found[part] = judge(model, way.batches, part).figures()
    found["losses"] = _thinned(losses)
    return found


def learn(
    spec: Spec, course: Course, seed: int, draw: Callable[[int], Batch], tick: Callable[[], None] = lambda: None
) -> tuple[Model, list[float]]:
    """The model that a training makes, and the loss of each step; `draw` gives the batch of a step."""
    if course.steps < 1:
        raise FormersError(f"steps={course.steps} is no training: give at least 1.")
    torch.manual_seed(seed)
    model = build(spec).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=course.rate, betas=(0.9, 0.98))
    warmup = min(course.warmup, course.steps // 5)
    losses = []
    for step in range(course.steps):
        warm = min(1.0, (step + 1) / max(warmup, 1))
        for group in optimizer.param_groups:
            group["lr"] = course.rate * warm * (1 + math.cos(math.pi * step / course.steps)) / 2
        optimizer.zero_grad()
        loss = model(**draw(step), update=step).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tick()
    return model.eval(), losses


@torch.no_grad()
def judge(model: Model, batches: Any, part: str, size: int = 250) -> Judged:
    """What a model tells of the rows of a part."""
    end = batches.ending() if isinstance(batches, Exercised) else None
    rows, ponder, asked = [], [], []
    with evaluating(model):
        for batch in batches.eval_batches(size, part):
            watch = Watch(STEPS)
            rows += row_results(model, batch["targets"], model(**batch, watch=watch), end)
            for steps in watch.notes.get(STEPS, {}).values():
                lengths = batch["mask"].sum(dim=1)
                ponder.append(steps.sum(dim=1) / lengths)
                asked.append(steps.gather(1, lengths[:, None] - 1).squeeze(1))
    return Judged(batches.difficulty(part), rows, *(torch.cat(each) if each else None for each in (ponder, asked)))


def of(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> list[float]:
    """A figure of every seed of a way: of(lines, "act", "valid", "exact")."""
    found = []
    for line in lines:
        if line["way"] == way:
            value: Any = line
            for name in path:
                value = value[name]
            found.append(float(value))
    return found


def names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ways of a table."""
    return list(dict.fromkeys(line["way"] for line in lines))


def mean(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> float:
    """The mean over the seeds."""
    return fmean(of(lines, way, *path))


def middle(lines: Sequence[Mapping[str, Any]], way: str, *path: Any) -> float:
    """The median over the seeds: of three, what two reach."""
    return median(of(lines, way, *path))


def _thinned(losses: list[float]) -> list[tuple[float, float]]:
    """The steps and mean losses of equal stretches."""
    width = max(1, len(losses) // POINTS)
    return [(start + width, fmean(losses[start : start + width])) for start in range(0, len(losses) - width + 1, width)]
