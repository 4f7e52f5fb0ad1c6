"""Judging a run after the fact: the folder says which model, which data and which split."""

from __future__ import annotations

import json
from pathlib import Path

from formers.core import FormersError
from formers.generation.sample import tokenizer_of
from formers.model import load
from formers.training.evaluate import judge
from formers.training.loop import RUN
from formers.training.task import task_of


def evaluate_run(run: str | Path, data: str | None = None, size: int = 16) -> dict[str, float]:
    """The figures of a run's model on the held-out part of its own data, or of other data."""
    model = load(run)
    task = task_of(model.spec, tokenizer_of(model), data or _data_of(Path(run)))
    return judge(model, task.batches, size)


def _data_of(run: Path) -> str:
    try:
        return str(json.loads((run / RUN).read_text())["data"])
    except (OSError, ValueError, KeyError):
        raise FormersError(f"{run} does not say what it was trained on: give --data.") from None
