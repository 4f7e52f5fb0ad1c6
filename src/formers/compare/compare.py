"""Members side by side: each trained alone, with the same budget and data and as many parameters, and evaluated on the same slice.

Each run is a process of its own, one after the other, so that its peak memory is its own and none slows another down. A run of the same
command that is there and finished is not trained or evaluated again, one that was interrupted goes on, and one of another command stays,
unless told otherwise. All read bytes, because other tokens would give members vocabularies of their own; tasks, stories and images have
their own, which are the same for all.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from formers.compare import runs
from formers.compare.budget import Budget
from formers.compare.fitting import fitted, knob_of, own_tokens
from formers.compare.verdict import verdict
from formers.core import FormersError
from formers.family.variants import Variant
from formers.model.files import to_json, write
from formers.training import Task, prepare
from formers.training.log import finite
from formers.training.start import arranged

COMPARISON = "comparison.json"
"""The file in the folder of a comparison that holds its results so far."""
FORMAT = "formers/comparison/1"
TRAINED = ("tokens_per_second", "images_per_second", "steps", "seconds", "peak_memory_bytes", "peak_device_memory_bytes")
"""Figures of a training that are compared."""
EVALUATED = (
    "bits_per_byte", "bits_per_dimension", "nats_per_image", "perplexity", "word_perplexity", "accuracy", "exact", "loss", "targets",
    "protocol",
)  # fmt: skip
"""Figures of an evaluation that are compared."""
SCORES = {
    "bits_per_byte": ("bits per byte", True), "bits_per_dimension": ("bits per dimension", True),
    "exact": ("share of exact answers", False), "accuracy": ("accuracy", False), "loss": ("loss", True),
}  # fmt: skip
"""What a verdict is about: the first that all runs have; its name in words, and whether less is better."""


class Plan(NamedTuple):
    """A run that a comparison needs."""

    variant: Variant
    seed: int
    folder: Path
    parameters: int
    train: list[str]
    evaluate: list[str]


def compare(
    variants: Sequence[Variant],
    data: str,
    out: Path,
    common: dict[str, Any],
    budget: Budget,
    parameters: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    split: str | None = None,
    command: str = "",
    device: str | None = None,
) -> dict[str, Any]:
    """Trains and evaluates every variant with every seed; a row of figures for each variant, the verdict, and what they have in common.

    out: the folder of their runs. common: options of all.
    parameters: as many for all; the first variant's unless given. limit: how many tokens of the held-out data are evaluated.
    seed, seeds: the first seed, and how many. overwrite: whether runs of other commands make room.
    split: the part that is evaluated, held out unless given. command: what began the comparison.
    device: of training and evaluation; the best available unless given.
    """
    plans = planned(variants, data, out, common, budget, parameters, limit, seed, seeds, split, device)
    for plan in plans:
        if not overwrite and runs.is_other(plan.folder, plan.train):
            raise FormersError(f"{str(plan.folder)!r} holds a run of another command: give another --out, or --overwrite to train it anew.")
    known = {tuple(run["train"] + run["evaluate"]): run for run in _known(out)}
    done: list[dict[str, Any]] = []
    for plan in plans:
        done.append(_run(plan, known.get((*plan.train, *plan.evaluate)), seeds, say))
        results = _results(variants, done, data, budget, seed, seeds, command)
        out.mkdir(parents=True, exist_ok=True)
        write(out / COMPARISON, to_json({"format": FORMAT, "whole": len(done) == len(plans), **results}))
    return results


def planned(
    variants: Sequence[Variant], data: str, out: Path, common: dict[str, Any], budget: Budget, parameters: int | None, limit: int | None,
    seed: int, seeds: int, split: str | None, device: str | None = None,
) -> list[Plan]:  # fmt: skip
    """The runs that a comparison needs, seed by seed; what cannot be compared is refused before anything is trained."""
    if len({v.folder for v in variants}) < len(variants):
        raise FormersError("two variants are the same: name each once.")
    if any(name in options for options in (common, *(each.options for each in variants)) for name in ("tokens", "vocab")):
        raise FormersError("members are compared over bytes, so that all have one vocabulary: leave tokens and vocab out.")
    refuse_unlike(variants, data, common)
    chosen: list[tuple[dict[str, Any], int]] = []
    for each in variants:
        wanted = parameters if parameters is not None or not chosen else chosen[0][1]
        first = "" if parameters is not None else variants[0].name
        own = knob_of(each.member) in each.options
        chosen.append(fitted(each.member, {**common, **each.options}, None if own else wanted, data, first))
    tokens = [] if own_tokens(data) else ["--tokens", "bytes"]
    spent = [_budget_words(budget, each, data, options) for each, (options, _) in zip(variants, chosen, strict=True)]
    slices = [*([] if limit is None else ["--limit", str(limit)]), *([] if split is None else ["--split", split])]
    where = [] if device is None else ["--device", device]
    plans = []
    for number in range(seed, seed + seeds):
        for each, (options, count), budgeted in zip(variants, chosen, spent, strict=True):
            run = out / (each.folder if number == seed else f"{each.folder}-{number}")
            sets = [word for name, value in options.items() for word in ("--set", f"{name}={json.dumps(value)}")]
            seeded = ["--seed", str(number)] if number else []
            words = ["train", each.member, "--data", data, "--out", str(run), *budgeted, *tokens, *seeded, *where, *sets]
            plans.append(Plan(each, number, run, count, words, ["eval", str(run), *slices, *where]))
    return plans


def _budget_words(budget: Budget, each: Variant, data: str, options: dict[str, Any]) -> list[str]:
    """The budget as options of `formers train`."""
    if budget.equal in ("time", "steps"):
        return ["--minutes", f"{budget.amount:g}"] if budget.equal == "time" else ["--steps", str(round(budget.amount))]
    task, batch = _task(each, data, options)
    return budget.options(task, batch)


def _task(each: Variant, data: str, options: dict[str, Any]) -> tuple[Task, int]:
    """What a variant is trained on, and the rows of a batch."""
    tokens = {} if own_tokens(data) else {"tokens": "bytes"}
    sizes, settings, reading = arranged(each.member, {**options, **tokens}, 1)
    return prepare(each.member, data, None, sizes, reading), settings.batch


def refuse_unlike(variants: Sequence[Variant], data: str, common: dict[str, Any]) -> None:
    """Refuses what would be refused after the first of them was trained: unknown options, data that one cannot read, or reads otherwise."""
    tasks = [_task(each, data, {**common, **each.options})[0] for each in variants]
    for each, task in zip(variants, tasks, strict=True):
        if task.fingerprint != tasks[0].fingerprint:
            raise FormersError(
                f"{variants[0].name} learns from {tasks[0].about}, and {each.name} from {task.about}, so that their figures cannot be "
                "compared: compare members that read the data alike."
            )


def _known(out: Path) -> list[dict[str, Any]]:
    """The runs that an earlier comparison in this folder has evaluated."""
    try:
        found = json.loads((out / COMPARISON).read_text(encoding="utf-8"))
        return [run for row in found["rows"] for run in row["runs"] if isinstance(run.get("train"), list)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _run(plan: Plan, known: dict[str, Any] | None, seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures of a run: what an earlier comparison found, or what it reaches when it is trained, or gone on with, and evaluated."""
    finished = runs.is_finished(plan.folder, plan.train)
    if known is not None and (finished or known["diverged"]):
        return known
    base = {
        "variant": plan.variant.name, "seed": plan.seed, "run": str(plan.folder), "parameters": plan.parameters,
        "train": plan.train, "evaluate": plan.evaluate,
    }  # fmt: skip
    if not finished:
        words = runs.next_words(plan.folder, plan.train)
        also = f", seed {plan.seed}" if seeds > 1 else ""
        say(f"{plan.variant.name}{also}: {plan.parameters:,} parameters{', resumed' if words[0] == 'resume' else ''}")
        try:
            runs.formers(*words)
        except runs.Diverging as error:
            say(str(error))
            return {**base, "diverged": True}
    figures = runs.formers(*plan.evaluate)
    trained = (runs.run_facts(plan.folder) or {}).get("results", {})
    found = {name: trained.get(name) for name in TRAINED} | {name: figures[name] for name in EVALUATED if name in figures}
    return {**base, "diverged": False, **finite(found)}


def _results(
    variants: Sequence[Variant], done: Sequence[dict[str, Any]], data: str, budget: Budget, seed: int, seeds: int, command: str
) -> dict[str, Any]:
    """What a comparison has found so far, ready for JSON."""
    groups = {each.name: [run for run in done if run["variant"] == each.name] for each in variants}
    rows = [row_of(name, group) for name, group in groups.items() if group]
    measure = next((name for name in SCORES if all(name in run for run in done if not run["diverged"])), "loss")
    title, lower = SCORES[measure]
    scores = {row["variant"]: [run[measure] for run in row["runs"] if run.get(measure) is not None] for row in rows}
    failed = {row["variant"]: row["diverged"] for row in rows}
    return {
        "data": data,
        "minutes": budget.amount if budget.equal == "time" else None,
        "steps": round(budget.amount) if budget.equal == "steps" else None,
        "equal": budget.equal,
        "budget": budget.amount,
        "seed": seed,
        "seeds": seeds,
        "rows": rows,
        "verdict": verdict(scores, title, lower, failed, percent=not lower),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}",
        "command": command,
    }


def row_of(name: str, group: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a variant: means over its seeds, and their standard deviations where there are several."""
    first = group[0]
    row = {"variant": name, "run": first["run"], "parameters": first["parameters"]}
    able = [run for run in group if not run["diverged"]]
    spread = {}
    for figure in (*TRAINED, *EVALUATED):
        values = [run[figure] for run in able if run.get(figure) is not None]
        if figure == "protocol" or not values:
            if values or figure in TRAINED:
                row[figure] = values[0] if values else None
            continue
        mean = fmean(values)
        row[figure] = round(mean) if all(isinstance(value, int) for value in values) else mean
        if len(values) > 1 and all(math.isfinite(value) for value in values):
            spread[figure] = stdev(values)
    return {**row, "seeds": len(group), "diverged": len(group) - len(able), "spread": spread, "runs": group}
