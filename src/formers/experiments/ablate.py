"""Ablation study: trains a member whole and without one part at a time, on the same data, with the same seeds.

All runs are evaluated as language models: a model that was trained without its mask is evaluated with it, with the same weights. Its
training loss is reported as well.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from formers.compare.fitting import BYTES
from formers.core import FormersError, nearest
from formers.evaluation import evaluate
from formers.evaluation.protocol import apply_protocol
from formers.family import spec as member_spec
from formers.family.ablations import ABLATIONS
from formers.family.members import member as find_member
from formers.inspect.draw.bars import Bar, Bars
from formers.model import Model, Spec, check, respecified
from formers.training import Settings, Task, prepare
from formers.training.device import pick_device
from formers.training.divergence import Diverged
from formers.training.log import Log, Tick
from formers.training.precision import prepare as prepare_precision
from formers.training.start import arranged, new_model, with_protocol
from formers.training.trainer import Trainer

WHOLE = "nothing"
"""The row of the whole model."""
SMALL: dict[str, Any] = {"dim": 64, "heads": 4, "layers": 4, "length": 64, "final_batches": 64}
"""Default sizes, with which a table takes minutes."""
ACCURACIES = ("accuracy", "exact_match", "masked_accuracy")
"""Metrics shown besides the loss: the first of these that the data have."""


WORDS = "The model trained without the mask is evaluated with it; without heads means one head with the width of all."


class Outcome(NamedTuple):
    """The losses of a run, in nats per target; None if not finite."""

    train_loss: float | None
    """The training loss, a running mean of the last steps, with or without the mask."""
    loss: float | None
    """On held-out data, evaluated with the mask."""
    accuracy: float | None = None
    diverged: int | None = None
    """The step at which the loss was not finite."""


def ablate(
    member: str = "decoder",
    data: str = "stdlib",
    without: Sequence[str] = (),
    steps: int = 400,
    seeds: int = 3,
    options: dict[str, Any] | None = None,
    say: Callable[[str], None] = print,
    tick: Tick = lambda done, total: None,
    device: str = "auto",
) -> dict[str, Any]:
    """Trains a member whole and without each part, with the seeds 0, 1, ...; a row of metrics for each.

    without: the names of the parts to remove, from ABLATIONS; default: all that the member has.
    options: sizes and settings, as for training; the defaults are small. say: called with a message for each part that a member lacks.
    """
    if seeds < 1:
        raise FormersError(f"seeds={seeds} is too small: give at least 1.")
    known = find_member(member).options
    small = {name: value for name, value in SMALL.items() if name in known or name in Settings.model_fields}
    sizes, settings, reading = arranged(member, {**small, **(options or {})}, steps)
    named = [_named(name) for name in without]
    if member_spec(member, **{**({"vocab": BYTES} if "vocab" in known else {}), **sizes}).encoder is not None:
        raise FormersError(f"{member} has two stacks, and an ablation changes only one: use decoder, or another member with one stack.")
    task = with_protocol(prepare(member, data, None, sizes, reading), {})
    specs = _specs(task.spec, named, say)
    where = pick_device(device)
    prepare_precision(settings.precision, where)
    rows: list[dict[str, Any]] = []
    total = len(specs) * seeds * steps
    for name, spec in specs.items():
        here = task._replace(spec=spec)
        runs = []
        for seed in range(seeds):
            done = partial(_tick, tick, (len(rows) * seeds + seed) * steps, total)
            runs.append(outcome(here, task.spec, settings.replace(seed=seed), where, done))
        with torch.device("meta"):
            count = new_model(here, torch.device("meta")).parameter_count()
        rows.append({"without": name, "parameters": count, **{field: [run[i] for run in runs] for i, field in enumerate(Outcome._fields)}})
    shown = {name: value for name, value in {**small, **(options or {})}.items() if name != "final_batches"}
    return {
        "member": member, "data": data, "about": task.about, "steps": steps, "seeds": seeds, "batch": settings.batch,
        "learning_rate": settings.learning_rate, "final_batches": settings.final_batches, "options": shown, "rows": rows,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}",
    }  # fmt: skip


def outcome(task: Task, whole: Spec, settings: Settings, where: torch.device, tick: Callable[[int], None] = lambda step: None) -> Outcome:
    """Trains one model of a task in this process, and evaluates it with the pattern and the head of the whole spec."""
    torch.manual_seed(settings.seed)
    loop = Trainer(new_model(task, where), task, settings)
    with Log(None, quiet=True) as log:
        try:
            while loop.progress < 1.0:
                loop.step_and_log(log)
                tick(loop.step)
        except Diverged:
            return Outcome(None, None, None, loop.step)
    figures = _evaluated(respecified(loop.model, task.spec.replace(pattern=whole.pattern, head=whole.head)), task, settings)
    loss = float(figures["loss"])
    if not math.isfinite(loss):
        return Outcome(loop.smooth, None, None, loop.step)
    return Outcome(loop.smooth, loss, next((float(figures[name]) for name in ACCURACIES if name in figures), None))


def _tick(tick: Tick, before: int, total: int, step: int) -> None:
    tick(before + step, total)


def _evaluated(model: Model, task: Task, settings: Settings) -> dict[str, Any]:
    read = apply_protocol(task.protocol.during_training(), model, task.batches)
    return dict(evaluate(read.model, read.batches, task.tokenizer, settings.batch, settings.final_batches, None, read.stride))


def _named(name: str) -> str:
    if name not in ABLATIONS:
        raise FormersError(f"there is no ablation {name!r}: {nearest(name, ABLATIONS)}")
    return name


def _specs(whole: Spec, named: Sequence[str], say: Callable[[str], None]) -> dict[str, Spec]:
    """The whole spec and the spec without each part; raises for a named part that is missing, reports any other missing part."""
    specs = {WHOLE: whole}
    for name in named or ABLATIONS:
        try:
            spec = ABLATIONS[name](whole)
            check(spec)
        except FormersError as error:
            if named:
                raise
            say(f"without {name}: {error}")
        else:
            specs[name] = spec
    if len(specs) == 1:
        raise FormersError(f"{whole.name} has none of {', '.join(ABLATIONS)} to remove: use decoder, or another Transformer.")
    return specs


def middle(values: Sequence[float | None]) -> float | None:
    """The mean over the seeds; None if a run lacks this metric."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def cells(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of the table, as text."""
    rows = results["rows"]
    accurate = any(middle(row["accuracy"]) is not None for row in rows)
    base = middle(rows[0]["loss"])
    titles = ["without", "parameters", "train loss", "held-out", "spread", "cost", *(["accuracy"] if accurate else [])]
    table = []
    for row in rows:
        loss, accuracy = middle(row["loss"]), middle(row["accuracy"])
        spread = None if loss is None or len(row["loss"]) < 2 else max(row["loss"]) - min(row["loss"])
        cost = None if loss is None or base is None or row is rows[0] else loss - base
        words = [_figure(middle(row["train_loss"])), _figure(loss) or _note(row), _figure(spread), _figure(cost, "+")]
        table.append([row["without"], f"{row['parameters']:,}", *words, *(["" if accuracy is None else f"{accuracy:.1%}"] * accurate)])
    return titles, table


def _figure(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.3f}"


def panels(results: dict[str, Any]) -> list[Bars]:
    """Bars of the held-out losses with the spread over the seeds, and of the accuracies if the data have them."""
    rows = results["rows"]
    shown = {"loss": "held-out loss, nats per target"}
    if any(middle(row["accuracy"]) is not None for row in rows):
        shown["accuracy"] = "accuracy"
    return [
        Bars([Bar(row["without"], [value for value in row[name] if value is not None], _note(row)) for row in rows], across)
        for name, across in shown.items()
    ]


def _note(row: dict[str, Any]) -> str:
    """A note on a row: divergence, and the training loss without a mask."""
    diverged = [step for step in row["diverged"] if step is not None]
    if diverged:
        return f"diverged in {len(diverged)} of {len(row['diverged'])}"
    seen = middle(row["train_loss"])
    return f"training loss {seen:.3f}" if row["without"] == "mask" and seen is not None else ""


def settings_words(results: dict[str, Any]) -> str:
    """One line that describes the setup of all runs."""
    sizes = ", ".join(f"{name}={value}" for name, value in results["options"].items())
    return (
        f"{results['member']} ({sizes}) on {results['about']}: {results['steps']:,} steps of batch={results['batch']}, "
        f"learning_rate={results['learning_rate']:g}, {results['seeds']} seed{'s' if results['seeds'] > 1 else ''}; evaluated on "
        f"{results['final_batches']} batches of held-out data at most."
    )


def markdown(results: dict[str, Any], command: str, picture: Path | None = None) -> str:
    """The results as Markdown: the command, the machine, and the table."""
    titles, table = cells(results)
    lines = [
        "# Ablations", "", "```console", f"$ {command}", "```", "", settings_words(results), f"Run on {results['machine']}.", "",
        *([f"![what each part is worth]({picture.as_posix()})", ""] if picture is not None else []),
        f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1), *(f"| {' | '.join(row)} |" for row in table), "",
        "Losses are means over the seeds, in nats per target; the spread is from lowest to highest. The training loss is the running "
        "mean of the last steps. " + WORDS,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
