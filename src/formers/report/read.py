"""What runs say of themselves: their facts, curves and samples; a damaged or half-written run is a sentence, and hides no other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from formers.compare.budget import row_flops
from formers.compare.compare import COMPARISON
from formers.compare.compare import FORMAT as COMPARED
from formers.core import FormersError
from formers.model import Spec
from formers.model.files import checkpoints
from formers.training.folder import RUN, read_facts
from formers.training.log import METRICS

STATE = "training.json"
"""The file of a checkpoint that holds the counters of the training."""
MEASURES = ("valid_bits_per_byte", "valid_bits_per_dimension", "valid_exact", "valid_accuracy", "valid_loss")
"""What is drawn of the evaluations during a run: the first that it has."""
MOST = 200
"""Runs of a report, at the most."""


@dataclass
class Recorded:
    """A run as it stands in its folder."""

    name: str
    folder: Path
    facts: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Lines of training steps."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    group: str = ""
    """What it is a repetition of: runs of a group differ by their seed."""
    tokens_per_step: float | None = None
    flops_per_step: float | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    """Figures of an evaluation of their own, from a comparison."""

    @property
    def is_agent(self) -> bool:
        """Whether it is the run of an agent."""
        return "env" in self.facts

    @property
    def reached(self) -> dict[str, Any]:
        """Its figures at the end: those of the comparison's own evaluation where there is one, else those of the training."""
        own = {name: value for name, value in self.scores.items() if value is not None}
        return own if "protocol" in own or "mean_return" in own else {**(self.facts.get("results") or {}), **own}

    @property
    def measure(self) -> str | None:
        """Which figure of held-out data its curve is of."""
        return next((name for name in MEASURES if any(line.get(name) is not None for line in self.evaluations)), None)


def read_reports(paths: Sequence[Path]) -> tuple[list[Recorded], list[dict[str, Any]], list[str]]:
    """The runs and the comparisons of folders, and a sentence for each that cannot be read."""
    found: list[Recorded] = []
    comparisons: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in paths:
        if (path / COMPARISON).exists():
            try:
                comparison = _comparison(path)
            except FormersError as error:
                problems.append(str(error))
                continue
            comparisons.append(comparison)
            for row in comparison["rows"]:
                for run in row["runs"]:
                    _take(Path(run["run"]), path, found, problems, row["variant"], run)
        elif (path / RUN).exists():
            _take(path, path.parent, found, problems)
        else:
            inside = sorted(place.parent for place in path.glob(f"*/{RUN}")) if path.is_dir() else []
            if not inside:
                problems.append(f"{path} holds no run and no comparison: give a folder that `formers train` or `compare` wrote.")
            for place in inside:
                _take(place, path, found, problems)
    if len(found) > MOST:
        problems.append(f"{len(found) - MOST:,} of {len(found):,} runs are left out: a report takes {MOST}.")
    return found[:MOST], comparisons, problems


def _comparison(folder: Path) -> dict[str, Any]:
    """What a comparison found."""
    try:
        found = json.loads((folder / COMPARISON).read_bytes())
        if found["format"] != COMPARED or not all(isinstance(run["run"], str) for row in found["rows"] for run in row["runs"]):
            raise ValueError(f"it is of format {found['format']!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormersError(f"{folder / COMPARISON} cannot be read ({str(error).splitlines()[0]}): repeat the comparison.") from None
    return dict(found)


def _take(
    folder: Path, beside: Path, found: list[Recorded], problems: list[str], group: str = "", scores: dict[str, Any] | None = None
) -> None:
    """Reads a run, whose folder may have moved together with that of its comparison."""
    if not folder.exists() and (beside / folder.name).exists():
        folder = beside / folder.name
    try:
        run = read_run(folder)
    except FormersError as error:
        problems.append(str(error))
        return
    run.group, run.scores = group or run.name, scores or {}
    if group:
        run.name = f"{group}, seed {run.scores.get('seed', run.facts['settings'].get('seed', 0))}"
    found.append(run)


def read_run(folder: Path) -> Recorded:
    """A run in its folder; what of it is missing or damaged is among its problems."""
    run = Recorded(folder.name, folder, read_facts(folder))
    if not run.facts.get("finished"):
        run.problems.append("This run is not finished: it is training, or was stopped or killed.")
    wrong = 0
    try:
        with (folder / METRICS).open(encoding="utf-8", errors="replace") as file:
            for text in file:
                wrong += not _line(run, text)
    except OSError as error:
        run.problems.append(f"{METRICS} cannot be read ({error.strerror}): there are no curves.")
    if wrong:
        run.problems.append(
            f"{wrong:,} line{'s' if wrong > 1 else ''} of {METRICS} cannot be read and {'are' if wrong > 1 else 'is'} left out."
        )
    if not run.is_agent:
        _count(run)
    return run


def _line(run: Recorded, text: str) -> bool:
    """Puts a line of the metrics where it belongs; whether it can be read."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return False
    if isinstance(line.get("sample"), str):
        run.samples.append(line)
    elif any(name in line for name in MEASURES):
        run.evaluations.append(line)
    elif "loss" in line or "return" in line:
        run.steps.append(line)
    return True


def _count(run: Recorded) -> None:
    """Tokens and FLOPs of a step: tokens as the newest checkpoint has counted them, else those of full rows."""
    batch = run.facts["settings"].get("batch", 1)
    try:
        spec = Spec(**run.facts["spec"])
        run.tokens_per_step = float(batch * spec.length)
        for folder in checkpoints(run.folder)[:1]:
            state = json.loads((folder / STATE).read_bytes())
            if state["step"]:
                run.tokens_per_step = state["tokens"] / state["step"]
        run.flops_per_step = batch * row_flops(spec, max(2, round(run.tokens_per_step / batch)))
    except (FormersError, OSError, ValueError, KeyError, TypeError) as error:
        run.problems.append(f"Tokens and FLOPs of a step are not known ({str(error).splitlines()[0]}).")
