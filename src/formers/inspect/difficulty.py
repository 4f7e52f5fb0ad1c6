"""How long a model thinks about data, and whether it thinks longer about what is harder.

An item is a row, with the mean N of its tokens, or, where each token has a difficulty of its own, a token. The correlation is
Pearson's, over items: 1 where N rises with the difficulty on a straight line, 0 where it does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from formers.core import IGNORED, Watch
from formers.data import Batches, Graded, StepGraded
from formers.inspect.ponder import Step, all_halting, by_step, refuse_plain, title_of
from formers.model import Model, Output, Spec
from formers.model.inspection import HALTING, REMAINDER, STEPS
from formers.model.save import find, read_config
from formers.training.evaluate import evaluate, held_out
from formers.training.pondering import Pondered
from formers.training.protocol import Protocol, read_by
from formers.training.run import open_run
from formers.training.score import likeliest

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
    """The share of symbols that the model gets right, each told from the right ones before it."""
    exact: float | None
    """The share of items with all of their symbols right."""


@dataclass(frozen=True, eq=False)
class Difficulty:
    """How long one stack, or one layer of it, thinks about a part of some data."""

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
    steps: list[Step] | None
    """What tokens answer at each step; None where nobody asked."""

    @property
    def words(self) -> str:
        """Mean and correlation in a line."""
        what = f"{self.title}: " if self.title else ""
        told = f"{what}{self.mean:.2f} of {self.most} steps a token in the mean ({1 - self.mean / self.most:.0%} saved)"
        if self.groups[0].difficulty is None:
            return f"{told}; the data do not say how hard their rows are"
        if self.correlation is None:
            same = "the difficulty is" if len(self.groups) == 1 else "N is"
            return f"{told}; no correlation, {same} always the same"
        return (
            f"{told}; correlation of N with the difficulty {self.correlation:+.2f}, over {sum(g.items for g in self.groups):,} {self.unit}"
        )


class Items(Pondered):
    """Keeps how long each item of the judged data thinks, and which of its targets are right."""

    def __init__(self, model: Model, batches: Batches, part: str, every_step: bool = False) -> None:
        super().__init__(model.spec)
        self.model, self.every_step = model, every_step
        self.by_step: Tensor | None = batches.step_difficulty(part) if isinstance(batches, StepGraded) else None
        self.by_row: Tensor | None = batches.difficulty(part) if isinstance(batches, Graded) else None
        self.extra = {"": model.spec.extra, "encoder ": 0 if model.spec.encoder is None else model.spec.encoder.extra}
        """Vectors before the tokens of each stack, which are no tokens of the data."""
        self.rows = 0
        self.grades: list[Tensor] = []
        self.right: list[Tensor] = []
        self.asked: list[Tensor] = []
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

    def judge(self, batch: Mapping[str, Tensor], out: Output, watch: Watch) -> None:
        super().judge(batch, out, watch)
        size = len(batch["targets"])
        self._answers(batch, out)
        for side in self.most:
            for layer, taken in watch.notes[side + STEPS].items():
                place, behind = (side, layer), slice(self.extra[side], None)
                n = taken[:, behind].double().cpu()
                real = n > 0
                self.tokens.setdefault(place, []).append(n[real])
                rows = n.sum(dim=1) / real.sum(dim=1).clamp(min=1)
                self.thought.setdefault(place, []).append(rows if self.by_step is None else n[real])
                if self.every_step:
                    self.halting.setdefault(place, []).append(all_halting(watch.notes[side + HALTING], layer)[:, behind].cpu()[real])
        self.rows += size

    def _answers(self, batch: Mapping[str, Tensor], out: Output) -> None:
        """Notes the difficulties of a batch's items, and how many targets each has and gets right."""
        if self.by_step is None and self.by_row is None:
            return
        targets, here = batch["targets"], slice(self.rows, self.rows + len(batch["targets"]))
        asked = targets != IGNORED
        right = ~asked
        right[asked] = likeliest(self.model, out, asked) == targets[asked]
        if targets.dim() > 2:  # several places of one symbol
            asked, right = asked.flatten(2).any(dim=2), right.flatten(2).all(dim=2)
        right &= asked
        if self.by_step is not None:
            mask = batch.get("mask", torch.ones(targets.shape[:2], dtype=torch.bool))
            self.grades.append(self.by_step[here][:, : mask.shape[1]][mask])
            asked, right = asked[mask], right[mask]
        elif self.by_row is not None:
            self.grades.append(self.by_row[here])
        self.asked.append(asked.flatten(1).sum(dim=1) if asked.dim() > 1 else asked.long())
        self.right.append(right.flatten(1).sum(dim=1) if right.dim() > 1 else right.long())

    def difficulties(self) -> list[Difficulty]:
        """What was seen, by stack and layer, the encoder first."""
        grades, asked, right = (torch.cat(each) if each else None for each in (self.grades, self.asked, self.right))
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
                    grouped(n, grades, asked, right),
                    None if grades is None else correlation(grades.double(), n),
                    float(tokens.mean()),
                    None if halting is None else by_step(torch.cat(halting), tokens),
                )
            )
        return made


def grouped(n: Tensor, grades: Tensor | None = None, asked: Tensor | None = None, right: Tensor | None = None) -> list[Group]:
    """N (items,), by difficulty; of each item how many targets it has, and how many of these are right."""
    if grades is None:
        return [_group(None, n, None, None)]
    return [
        _group(int(grade), n[grades == grade], *(None if each is None else each[grades == grade] for each in (asked, right)))
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
) -> list[Difficulty]:
    """How long a run's model thinks about a part of its own data, or of other data, by stack and layer.

    limit: how many rows are read, of a text how many tokens. every_step: halting probabilities are wanted, for which every token takes all
    steps; else those that have halted are skipped.
    """
    spec = Spec(**read_config(find(Path(run)))["spec"])
    refuse_plain(spec, spec.name or str(run))
    model, task, facts = open_run(run, data, part, checkpoint=checkpoint)
    own = Protocol(**facts.get("protocol") or {})
    reading = read_by(own.in_passing(), model, task.batches)
    where = part or held_out(reading.batches)
    items = Items(reading.model, reading.batches, where, every_step)
    evaluate(reading.model, reading.batches, task.tokenizer, size, part=where, first=limit, progress=progress, pondered=items)
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


def _group(difficulty: int | None, n: Tensor, asked: Tensor | None, right: Tensor | None) -> Group:
    accuracy = exact = None
    if asked is not None and right is not None and int(asked.sum()):
        accuracy = float(right.sum()) / float(asked.sum())
        exact = float((right == asked)[asked > 0].double().mean())
    return Group(difficulty, len(n), float(n.mean()), float(n.std(correction=0)), accuracy, exact)
