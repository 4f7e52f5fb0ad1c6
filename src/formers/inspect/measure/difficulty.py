"""Ponder times of a model on data, and their correlation with the difficulty.

An item is a row, with the mean N of its tokens, or, where each token has its own difficulty, a token. The correlation is
Pearson's, over items: 1 where N rises with the difficulty on a straight line, 0 where it does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from formers.core import Watch
from formers.data import Batches, Graded, StepGraded
from formers.data.collate import Stories
from formers.data.tasks import Exercised
from formers.depth.halting import HALTING, REMAINDER, STEPS
from formers.evaluation.evaluate import default_part, evaluate
from formers.evaluation.exact_match import correctness
from formers.evaluation.ponder import PonderMetrics
from formers.evaluation.protocol import Protocol, apply_protocol
from formers.inspect.measure.ponder import StepHalting, all_halting, by_step, refuse_plain, title_of
from formers.model import Model, Output, Spec
from formers.model.save import find, read_config
from formers.training.run import open_run

Progress = Callable[[int, "int | None"], None]


class Group(NamedTuple):
    """Items of one difficulty; None where the data know of none."""

    difficulty: int | None
    items: int
    mean: float
    """Of N."""
    spread: float
    """The standard deviation of the items' N."""
    accuracy: float | None
    """The share of symbols that the model predicts right, each from the right ones before it."""
    exact: float | None
    """The share of rows that are wholly right, their end, too; None where items are tokens."""


class ItemAnswers(NamedTuple):
    """What was answered of some items, all (items,)."""

    symbols: Tensor
    """How many are asked for."""
    right: Tensor
    whole: Tensor | None
    """Which rows are wholly right."""

    @classmethod
    def of(cls, each: Sequence[ItemAnswers]) -> ItemAnswers:
        """Those of several batches."""
        symbols, right, whole = zip(*each, strict=True)
        return cls(torch.cat(symbols), torch.cat(right), None if whole[0] is None else torch.cat(whole))

    def some(self, items: Tensor) -> ItemAnswers:
        """Those of some of the items."""
        return ItemAnswers(self.symbols[items], self.right[items], None if self.whole is None else self.whole[items])


@dataclass(frozen=True, eq=False)
class Difficulty:
    """The ponder times of one stack, or one layer of it, on a part of some data."""

    title: str
    most: int
    """The most steps that there are."""
    unit: Literal["rows", "tokens"]
    """What an item is."""
    groups: list[Group]
    """By difficulty, which rises."""
    correlation: float | None
    """Of difficulty and N over all items; None where one of them is always the same."""
    mean: float
    """Of N, over all tokens."""
    steps: list[StepHalting] | None
    """Halting probabilities at each step; None if not requested."""
    dial: str = "difficulty"
    """What the difficulty is the number of, such as digits."""

    @property
    def words(self) -> str:
        """Mean and correlation in a line."""
        what = f"{self.title}: " if self.title else ""
        text = f"{what}{self.mean:.2f} of {self.most} steps a token in the mean ({1 - self.mean / self.most:.0%} saved)"
        if self.groups[0].difficulty is None:
            return f"{text}; the data do not say how hard their rows are"
        if self.correlation is None:
            same = "the difficulty is" if len(self.groups) == 1 else "N is"
            return f"{text}; no correlation, {same} always the same"
        return (
            f"{text}; correlation of N with the difficulty {self.correlation:+.2f}, over {sum(g.items for g in self.groups):,} {self.unit}"
        )


class Items(PonderMetrics):
    """Collects the ponder time of each evaluated item, and which of its targets are right."""

    def __init__(self, model: Model, batches: Batches, part: str, every_step: bool = False) -> None:
        super().__init__(model.spec)
        self.model, self.every_step = model, every_step
        self.by_step: Tensor | None = batches.step_difficulty(part) if isinstance(batches, StepGraded) else None
        self.by_row: Tensor | None = batches.difficulty(part) if isinstance(batches, Graded) else None
        self.extra = {"": model.spec.extra, "encoder ": 0 if model.spec.encoder is None else model.spec.encoder.extra}
        """Vectors before the tokens of each stack, which are no tokens of the data."""
        self.rows = 0
        self.grades: list[Tensor] = []
        self.dial = _dial(batches)
        self.end = batches.ending() if isinstance(batches, Exercised) else None
        self.answers: list[ItemAnswers] = []
        self.thought: dict[tuple[str, int], list[Tensor]] = {}
        """N of each item, by stack and layer."""
        self.tokens: dict[tuple[str, int], list[Tensor]] = {}
        """N of each token."""
        self.halting: dict[tuple[str, int], list[Tensor]] = {}
        """h of each token (tokens, most)."""

    @property
    def unit(self) -> Literal["rows", "tokens"]:
        """What an item is."""
        return "rows" if self.by_step is None else "tokens"

    def watch(self) -> Watch:
        return Watch(only=(STEPS, REMAINDER, *([HALTING] if self.every_step else [])))

    def update(self, batch: Mapping[str, Tensor], out: Output, watch: Watch, figures: Mapping[str, Tensor] | None = None) -> None:
        super().update(batch, out, watch, figures)
        size = len(batch["targets"])
        self._answers(batch, out)
        for side in self.most:
            for layer, taken in watch.notes[side + STEPS].items():
                place, tokens = (side, layer), slice(self.extra[side], None)
                n = taken[:, tokens].cpu().double()
                real = n > 0
                self.tokens.setdefault(place, []).append(n[real])
                rows = n.sum(dim=1) / real.sum(dim=1).clamp(min=1)
                self.thought.setdefault(place, []).append(rows if self.by_step is None else n[real])
                if self.every_step:
                    self.halting.setdefault(place, []).append(all_halting(watch.notes[side + HALTING], layer)[:, tokens].cpu()[real])
        self.rows += size

    def _answers(self, batch: Mapping[str, Tensor], out: Output) -> None:
        """Notes the difficulties of a batch's items, and how many symbols each has and gets right."""
        if self.by_step is None and self.by_row is None:
            return
        targets, here = batch["targets"], slice(self.rows, self.rows + len(batch["targets"]))
        counted, symbol, hit = correctness(self.model, targets, out, self.end)
        if self.by_step is not None:
            mask = batch.get("mask", torch.ones(targets.shape[:2], dtype=torch.bool))
            self.grades.append(self.by_step[here][:, : mask.shape[1]][mask])
            self.answers.append(ItemAnswers(symbol[mask].long(), (hit & symbol)[mask].long(), None))
        elif self.by_row is not None:
            self.grades.append(self.by_row[here])
            self.answers.append(ItemAnswers(symbol.sum(dim=1), (hit & symbol).sum(dim=1), hit.all(dim=1) & counted.any(dim=1)))

    def difficulties(self) -> list[Difficulty]:
        """What was seen, by stack and layer, the encoder first."""
        grades = torch.cat(self.grades) if self.grades else None
        answers = ItemAnswers.of(self.answers) if self.answers else None
        made = []
        for side, layer in sorted(self.thought, key=lambda place: (not place[0], place[1])):
            n, tokens = torch.cat(self.thought[side, layer]), torch.cat(self.tokens[side, layer])
            layers = sum(place[0] == side for place in self.thought)
            halting = self.halting.get((side, layer))
            made.append(
                Difficulty(
                    title_of(side, layer if layers > 1 else None, self.model.spec.encoder is not None),
                    self.most[side],
                    self.unit,
                    grouped(n, grades, answers),
                    None if grades is None else correlation(grades.double(), n),
                    float(tokens.mean()),
                    None if halting is None else by_step(torch.cat(halting), tokens),
                    self.dial,
                )
            )
        return made


def grouped(n: Tensor, grades: Tensor | None = None, answers: ItemAnswers | None = None) -> list[Group]:
    """N (items,), by difficulty, with what was answered."""
    if grades is None:
        return [_group(None, n, None)]
    return [
        _group(int(grade), n[grades == grade], None if answers is None else answers.some(grades == grade))
        for grade in sorted(set(grades.tolist()))
    ]


def correlation(x: Tensor, y: Tensor) -> float | None:
    """Pearson's correlation of two rows of numbers; None where one of them is always the same."""
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size > 1e-9 * len(x) else None


def run_difficulty(
    run: str | Path,
    data: str | None = None,
    part: str | None = None,
    size: int = 16,
    limit: int | None = None,
    checkpoint: Literal["last", "best"] = "last",
    every_step: bool = False,
    progress: Progress | None = None,
    device: str = "auto",
) -> list[Difficulty]:
    """The ponder times of a run's model on a part of its own data, or of other data, by stack and layer.

    limit: how many rows are read, of a text how many tokens. every_step: halting probabilities are wanted, for which every token takes all
    steps; else those that have halted are skipped.
    """
    spec = Spec(**read_config(find(Path(run)))["spec"])
    refuse_plain(spec, spec.name or str(run))
    model, task, facts = open_run(run, data, part, checkpoint=checkpoint, device=device)
    own = Protocol(**facts.get("protocol") or {})
    reading = apply_protocol(own.during_training(), model, task.batches)
    where = part or default_part(reading.batches)
    items = Items(reading.model, reading.batches, where, every_step)
    evaluate(reading.model, reading.batches, task.tokenizer, size, part=where, first=limit, progress=progress, ponder=items)
    return items.difficulties()


def difficulty_facts(seen: Sequence[Difficulty], name: str) -> dict[str, Any]:
    """All numbers, ready for JSON."""
    return {
        "model": name,
        "stacks": [
            {
                "stack": each.title,
                "limit": each.most,
                "unit": each.unit,
                "mean_steps": each.mean,
                "saved": 1 - each.mean / each.most,
                "correlation": each.correlation,
                "groups": [group._asdict() for group in each.groups],
                "by_step": None if each.steps is None else [step._asdict() for step in each.steps],
            }
            for each in seen
        ],
    }


def _dial(batches: Batches) -> str:
    """What the difficulty of a row is the number of, as far as that is known."""
    if isinstance(batches, StepGraded):
        return "difficulty"
    return batches.exercise.dial if isinstance(batches, Exercised) else "supporting facts" if isinstance(batches, Stories) else "difficulty"


def _group(difficulty: int | None, n: Tensor, answers: ItemAnswers | None) -> Group:
    accuracy = exact = None
    if answers is not None and int(answers.symbols.sum()):
        accuracy = float(answers.right.sum()) / float(answers.symbols.sum())
        if answers.whole is not None:
            exact = float(answers.whole[answers.symbols > 0].double().mean())
    return Group(difficulty, len(n), float(n.mean()), float(n.std(correction=0)), accuracy, exact)
