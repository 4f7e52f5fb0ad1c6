"""Members side by side: each trained alone, for the same time, on the same data, with as many parameters; and judged on the same slice.

Each run is a process of its own, one after the other, so that its peak memory is its own and none slows another down. A run of the same
command that is there and finished is not trained again; one of another command stays, unless told otherwise. All read bytes, because
other tokens would give members vocabularies of their own; tasks, stories and images have their own, which are the same for all.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from formers.core import FormersError
from formers.data import kind_of
from formers.data.progress import silent
from formers.data.reading import Reading
from formers.family import spec as member_spec
from formers.family.members import member as find_member
from formers.family.variants import Variant
from formers.model import build
from formers.training import prepare
from formers.training.images import IMAGE_OPTIONS
from formers.training.start import arranged

MULTIPLE = 8
"""The feed-forward width that is fitted is a multiple of this: products of such matrices are faster."""
EVEN = 2
"""Of members without one the width itself is fitted, by so many: a cell that reads from both ends has two halves."""
MOST = 1 << 13
"""No width that is fitted has more multiples."""
TOLERANCE = {"hidden": 0.02, "dim": 0.05}
"""How far from equal the numbers of parameters may be; a step of the width itself is a larger one."""
BYTES = 256


def fitted(member: str, options: dict[str, Any], parameters: int | None, data: str = "", first: str = "") -> tuple[dict[str, Any], int]:
    """The options with the `hidden`, or else the `dim`, that gives a member so many parameters, the nearest there is, and how many it has.

    Parameters that only training needs are not counted. data: what they are trained on; first: the member whose number it is.
    """
    if parameters is None:
        return options, _count(member, options, data)
    knob = _knob(member)
    multiple = MULTIPLE if knob == "hidden" else EVEN
    above = bisect_left(range(1, MOST), parameters, key=lambda n: _count(member, {**options, knob: n * multiple}, data)) + 1
    tried = [{**options, knob: n * multiple} for n in (above - 1, above) if 1 <= n < MOST]
    made, count = min(((each, _count(member, each, data)) for each in tried), key=lambda found: abs(found[1] - parameters))
    if abs(count - parameters) > TOLERANCE[knob] * parameters:
        raise FormersError(
            f"{member} cannot have {parameters:,} parameters{f', as {first} has' if first else ''}: with {knob}={made[knob]} it has "
            f"{count:,}; choose other sizes, another first member, or other --parameters."
        )
    return made, count


def _knob(member: str) -> str:
    """The size by which a member is given more parameters or fewer."""
    return "hidden" if "hidden" in find_member(member).options else "dim"


def _count(member: str, options: dict[str, Any], data: str) -> int:
    """The parameters that a member of these options needs to read and write."""
    known = find_member(member).options
    sizes = {name: value for name, value in options.items() if name in known or name in IMAGE_OPTIONS}
    spec = prepare(member, data, None, sizes, Reading()).spec if _own_tokens(data) else member_spec(member, **{"vocab": BYTES, **sizes})
    with torch.device("meta"):
        return build(spec).parameter_count(training=False)


def _own_tokens(data: str) -> bool:
    """Whether data have tokens of their own, whoever reads them."""
    return kind_of(data) in ("task", "stories", "images")


def compare(
    variants: Sequence[Variant],
    data: str,
    out: Path,
    common: dict[str, Any],
    minutes: float | None = None,
    steps: int | None = None,
    parameters: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    split: str | None = None,
) -> dict[str, Any]:
    """Trains and judges every variant in its turn; a row of figures for each, and what they have in common.

    out: the folder of their runs. common: options of all.
    parameters: as many for all; the first variant's unless given. limit: how many tokens of the held-out data are judged.
    seed: of all of them. overwrite: whether runs of other commands make room. split: the part that is evaluated, held out unless given.
    """
    if len({v.folder for v in variants}) < len(variants):
        raise FormersError("two variants are the same: name each once.")
    if any(name in options for options in (common, *(each.options for each in variants)) for name in ("tokens", "vocab")):
        raise FormersError("members are compared over bytes, so that all have one vocabulary: leave tokens and vocab out.")
    refuse_unlike(variants, data, common)
    chosen: list[tuple[dict[str, Any], int]] = []
    for each in variants:
        wanted = parameters if parameters is not None or not chosen else chosen[0][1]
        first = "" if parameters is not None else variants[0].name
        own = _knob(each.member) in each.options
        chosen.append(fitted(each.member, {**common, **each.options}, None if own else wanted, data, first))
    budget = ["--minutes", str(minutes)] if minutes is not None else ["--steps", str(steps)]
    commands = []
    for each, (options, _) in zip(variants, chosen, strict=True):
        run = out / each.folder
        sets = [word for name, value in options.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        tokens = [] if _own_tokens(data) else ["--tokens", "bytes"]
        words = ["train", each.member, "--data", data, "--out", str(run), *budget, *tokens, *(["--seed", str(seed)] if seed else []), *sets]
        if not overwrite and _other(run, words):
            raise FormersError(f"{str(run)!r} holds a run of another command: give another --out, or --overwrite to train it anew.")
        commands.append(words)
    rows = []
    for each, (_, count), words in zip(variants, chosen, commands, strict=True):
        run = out / each.folder
        if not _finished(run, words):
            say(f"{each.name}: {count:,} parameters")
            _formers(*words, *(["--overwrite"] if run.exists() else []))
        part = [] if split is None else ["--split", split]
        figures = _formers("eval", str(run), *([] if limit is None else ["--limit", str(limit)]), *part)
        trained = json.loads((run / "run.json").read_text())["results"]
        names = ("tokens_per_second", "images_per_second", "steps", "peak_memory_bytes")
        rows.append(
            {"variant": each.name, "run": str(run), "parameters": count, **{name: trained.get(name) for name in names}, **_judged(figures)}
        )
    return {
        "data": data, "minutes": minutes, "steps": steps, "seed": seed, "rows": rows,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}",
    }  # fmt: skip


def refuse_unlike(variants: Sequence[Variant], data: str, common: dict[str, Any]) -> None:
    """Refuses what would be refused after the first of them was trained: unknown options, data that one cannot read, or reads otherwise."""
    tokens = {} if _own_tokens(data) else {"tokens": "bytes"}
    tasks = []
    for each in variants:
        sizes, _, reading = arranged(each.member, {**common, **each.options, **tokens}, 1)
        tasks.append(prepare(each.member, data, None, sizes, reading))
    for each, task in zip(variants, tasks, strict=True):
        if task.fingerprint != tasks[0].fingerprint:
            raise FormersError(
                f"{variants[0].name} learns from {tasks[0].about}, and {each.name} from {task.about}, so that their figures cannot be "
                "compared: compare members that read the data alike."
            )


def _other(run: Path, words: Sequence[str]) -> bool:
    """Whether a folder holds a run of a command that is not this one."""
    known = _facts(run)
    return known is not None and _command(known) != [*words]


def _finished(run: Path, words: Sequence[str]) -> bool:
    """Whether a folder holds a run of just this command that has spent its budget."""
    known = _facts(run)
    return known is not None and bool(known.get("finished")) and _command(known) == [*words]


def _facts(run: Path) -> dict[str, Any] | None:
    """What a run says of itself; None where there is no run."""
    try:
        found = json.loads((run / "run.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _command(facts: dict[str, Any]) -> list[str]:
    """The words of a run's command that say what is trained."""
    return [word for word in facts.get("command", [])[1:] if word not in ("--json", "--overwrite", "-q")]


def _judged(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of a judgement that are compared."""
    names = (
        "bits_per_byte",
        "bits_per_dimension",
        "nats_per_image",
        "perplexity",
        "word_perplexity",
        "accuracy",
        "exact",
        "loss",
        "targets",
        "protocol",
    )
    return {name: figures[name] for name in names if name in figures}


def _formers(*words: str) -> dict[str, Any]:
    """What a command of this library prints as JSON; its bars and messages go where this process's go."""
    quiet = ["-q"] if silent() else []
    done = subprocess.run([sys.executable, "-m", "formers", *words, *quiet, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise FormersError(
            f"`formers {shlex.join(words)}` ended with code {done.returncode}: see above what it says; runs that are done stay."
        )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


FIGURES = {
    "bits per byte": "bits_per_byte", "bits per dimension": "bits_per_dimension", "nats per image": "nats_per_image", "loss": "loss",
    "accuracy": "accuracy", "exact": "exact",
}  # fmt: skip
"""What is compared, by its title."""


def titles(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The figures that a table of rows shows: bits per byte where all have them, else the loss, and what is exact."""
    found = [title for title, name in FIGURES.items() if all(name in row for row in rows)]
    return [title for title in found if title != "loss" or not {"bits per byte", "bits per dimension"} & {*found}]


def speed(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """How fast members train: the title and the name of the figure; images of a position a pixel have fewer tokens than others."""
    images = all(row.get("images_per_second") for row in rows)
    return ("images/s", "images_per_second") if images else ("tokens/s", "tokens_per_second")


def speed_of(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """How fast the member of a row trains, as text."""
    value = row[speed(rows)[1]]
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def shown(row: dict[str, Any], title: str) -> str:
    """A figure of a row, as text."""
    value = row[FIGURES[title]]
    return f"{value:.1%}" if title in ("accuracy", "exact") else f"{value:.3f}"


def markdown(results: dict[str, Any], command: str) -> str:
    """The comparison as a page: the command, what it ran on, and a table."""
    budget = f"{results['minutes']:g} minutes" if results["minutes"] is not None else f"{results['steps']:,} steps"
    lines = [
        f"# {results['data']}, {budget} each", "", "```console", f"$ {command}", "```", "",
        f"Run on {results['machine']}. Each was trained alone. Parameters are those that reading and writing need.", "",
        "| | " + " | ".join(["parameters", *titles(results["rows"]), speed(results["rows"])[0], "steps", "peak memory"]) + " |",
        "|---|" + "---:|" * (4 + len(titles(results["rows"]))),
    ]  # fmt: skip
    for row in results["rows"]:
        memory = f"{row['peak_memory_bytes'] / 1e6:,.0f} MB" if row.get("peak_memory_bytes") else ""
        figures = [shown(row, title) for title in titles(results["rows"])]
        cells = (f"`{row['variant']}`", f"{row['parameters']:,}", *figures, speed_of(row, results["rows"]), f"{row['steps']:,}", memory)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "How each was judged:", ""]
    lines += [f"- `{row['variant']}`: {row['protocol']}." for row in results["rows"]]
    return "\n".join(lines) + "\n"
