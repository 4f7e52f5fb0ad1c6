"""Agents side by side: every variant trained with several seeds on one environment, for as many steps.

A run is solved at the first step at which the mean over a full window of the newest 200 episodes reaches the bar, and held if it stays
above 0.95 of it, in such windows, to the end. A run that is there and finished with the same options is not trained again, and one that
was interrupted goes on.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from formers.compare.compare import COMPARISON, FORMAT
from formers.compare.verdict import verdict
from formers.core import FormersError
from formers.family.variants import Variant
from formers.inspect.draw.curves import Curve, Panel
from formers.model.files import checkpoints, to_json, write
from formers.rl import evaluate_agent, resume, train
from formers.rl.evaluation import BOOTSTRAP, interval, iqm
from formers.rl.rollout import WINDOW
from formers.training.divergence import Diverged
from formers.training.folder import holds_run, read_facts
from formers.training.log import METRICS

EPISODES = 200
"""Fresh episodes of each evaluation."""
POINTS = 60
"""Points of a curve."""


def compare_agents(
    variants: Sequence[Variant],
    env: str,
    out: Path,
    common: Mapping[str, Any],
    steps: int,
    seeds: Sequence[int],
    bar: float,
    measure: str,
    say: Callable[[str], None] = print,
    command: str = "",
) -> dict[str, Any]:
    """Trains and evaluates every variant with every seed; a row of figures for each variant, and the verdict on their returns.

    bar, measure: what counts as solved, for example 0.97 of "return" or "success".
    """
    if len({v.folder for v in variants}) < len(variants):
        raise FormersError("two variants are the same: name each once.")
    rows = []
    for each in variants:
        runs = [run_one(each, env, out, {**common, **each.options}, steps, seed, bar, measure, say) for seed in seeds]
        rows.append(row(each.name, runs))
        say(words(rows[-1]))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}"
    scores = {each["variant"]: [run["mean_return"] for run in each["runs"] if run["mean_return"] is not None] for each in rows}
    failed = {each["variant"]: each["diverged"] for each in rows}
    results = {
        "env": env, "steps": steps, "seeds": list(seeds), "bar": bar, "measure": measure, "rows": rows, "machine": machine,
        "verdict": verdict(scores, "mean return", lower=False, failed=failed), "command": command,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write(out / COMPARISON, to_json({"format": FORMAT, "whole": True, **results}))
    return results


def run_one(
    each: Variant, env: str, out: Path, options: dict[str, Any], steps: int, seed: int, bar: float, measure: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """The figures of one run, which is trained unless it is there."""
    folder = out / f"{each.folder}-{seed}"
    asked = {"member": each.member, "env": env, "steps": steps, "seed": seed, "options": options}
    known, begun = folder / "compared.json", folder / "comparing.json"
    if not _says(known, asked):
        say(f"{each.name}, seed {seed}")
        try:
            if _says(begun, asked) and holds_run(folder) and checkpoints(folder):
                if not read_facts(folder).get("finished"):
                    resume(folder, quiet=True)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                write(begun, to_json(asked))
                train(each.member, env, folder, steps=steps, seed=seed, overwrite=True, quiet=True, track="none", **options)
        except Diverged as error:
            say(str(error))
            return {"run": str(folder), "seed": seed, "diverged": True, "solved": None, "held": False, "mean_return": None}
        write(known, to_json(asked))
    lines = metrics(folder)
    solved = next((line for line in lines if line["episodes"] >= WINDOW and line[measure] >= bar), None)
    after = [] if solved is None else [line[measure] for line in lines if line["step"] >= solved["step"]]
    found = evaluate_agent(folder, EPISODES, env=env, seed=seed + 1)
    return {
        "run": str(folder), "seed": seed, "diverged": False,
        "solved": None if solved is None else solved["step"],
        "solve_seconds": None if solved is None else round(solved["cpu_seconds"], 2),
        "held": bool(after) and min(after) >= 0.95 * bar, "lowest_after": min(after, default=None),
        "cpu_seconds": round(lines[-1]["cpu_seconds"], 1), "mean_return": found["mean_return"], "success": found["success"],
        "ratio_error": max(line["ratio_error"] for line in lines),
    }  # fmt: skip


def _says(file: Path, asked: dict[str, Any]) -> bool:
    """Whether a file in a run's folder says that the run is the one asked for."""
    try:
        return bool(json.loads(file.read_text()) == json.loads(json.dumps(asked)))
    except (OSError, ValueError):
        return False


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's updates by which an episode had ended."""
    lines = (json.loads(line) for line in (Path(folder) / METRICS).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "return" in line and "ratio_error" in line]


def row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a variant over its seeds."""
    solved = [r["solved"] for r in runs if r["solved"] is not None]
    returns = np.array([r["mean_return"] for r in runs if r["mean_return"] is not None])
    low, high = interval(returns) if len(returns) else (float("nan"), float("nan"))
    return {
        "variant": name, "runs": runs, "seeds": len(runs), "solved": len(solved), "diverged": sum(r["diverged"] for r in runs),
        "held": sum(r["held"] for r in runs), "median_steps": median(solved) if solved else None,
        "median_solve_seconds": median(r["solve_seconds"] for r in runs if r["solved"] is not None) if solved else None,
        "mean_return": fmean(returns) if len(returns) else None, "lowest_return": float(returns.min()) if len(returns) else None,
        "iqm_return": iqm(returns) if len(returns) else None, "iqm_low": low, "iqm_high": high,
    }  # fmt: skip


TITLES = ("", "solved", "held", "diverged", "steps to solve", "CPU s to solve", "return", "lowest")


def cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as text, by TITLES."""
    n = found["seeds"]

    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        found["variant"], f"{found['solved']}/{n}", f"{found['held']}/{n}", f"{found['diverged']}/{n}",
        shown(found["median_steps"], ",.0f"), shown(found["median_solve_seconds"], ".1f"),
        shown(found["mean_return"], ".3f"), shown(found["lowest_return"], ".3f"),
    )  # fmt: skip


def words(found: Mapping[str, Any]) -> str:
    """A row of the comparison as one line of text, each cell after its column title."""
    return "; ".join(f"{title} {cell}".strip() for title, cell in zip(TITLES, cells(found), strict=True) if cell)


def markdown(results: Mapping[str, Any], command: str) -> str:
    """The comparison as a table with its command."""
    lines = [
        "```console", f"$ {command}", "```", "",
        f"{results['env']}, {results['steps']:,} steps, seeds {', '.join(map(str, results['seeds']))}. Solved: the mean "
        f"{results['measure']} of the newest {WINDOW} training episodes reaches {results['bar']:g}. Return: of {EPISODES} fresh episodes "
        "after the last step, most probable actions, mean and lowest over the seeds. Steps and CPU seconds are medians over the solved "
        f"runs. {results['machine']}.",
        "", "| " + " | ".join(TITLES) + " |", "|---|" + "---:|" * (len(TITLES) - 1),
    ]  # fmt: skip
    for found in results["rows"]:
        name, *others = cells(found)
        lines.append("| " + " | ".join((f"`{name}`", *others)) + " |")
    return "\n".join(lines) + "\n"


def panel(results: Mapping[str, Any], title: str = "") -> Panel:
    """The mean of each variant's curves over its seeds, with a 95 % bootstrap interval of that mean where there are several."""
    measure, curves = str(results["measure"]), []
    for found in results["rows"]:
        each = [metrics(run["run"]) for run in found["runs"] if not run["diverged"]]
        if not each:
            continue
        first, last = max(lines[0]["step"] for lines in each), min(lines[-1]["step"] for lines in each)
        at = np.linspace(first, last, POINTS)
        heights = np.stack([np.interp(at, [line["step"] for line in lines], [line[measure] for line in lines]) for lines in each])
        curves.append(Curve(found["variant"], at.tolist(), heights.mean(axis=0).tolist(), band(heights)))
    return Panel(curves, "environment steps", f"mean {measure} of the newest {WINDOW} episodes", scale="linear", title=title)


def band(heights: NDArray[np.float64], seed: int = 0) -> tuple[list[float], list[float]] | None:
    """Between what the means of 95 % of bootstrap samples of the runs lie, at each point; heights: (runs, points). None for one run."""
    if len(heights) < 2:
        return None
    drawn = np.random.default_rng(seed).integers(len(heights), size=(BOOTSTRAP, len(heights)))
    low, high = np.quantile(heights[drawn].mean(axis=1), (0.025, 0.975), axis=0)
    return low.tolist(), high.tolist()
