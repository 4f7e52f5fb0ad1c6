"""`formers bench`: times the family against the plainest code that does the same, and measures its memory.

The commands are made of the table in cli/benches.py.
"""

from __future__ import annotations

import inspect
import os
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from formers.cli.benches import BENCHES, CLAIMS, Bench
from formers.cli.common import check_file, wrote
from formers.cli.limits import end, show
from formers.cli.reproduce import run_claim
from formers.cli.rows import add_command, handed_on

app = typer.Typer(
    help="Time training, decoding and attention; measure memory; compare what `explain` predicts with real runs.", no_args_is_help=True
)


def run_bench(row: Bench, values: dict[str, Any]) -> None:
    """Measures, draws and prints what a row says; with --check a figure outside its limits ends in exit code 1."""
    check, json = values.pop("check"), values.pop("json")
    out: Path | None = values.pop("out", None)
    check_file(out, (".png", ".svg"))
    for name, value in row.environment.items():
        os.environ.setdefault(name, value)
    module = import_module(f"formers.bench.{row.module or row.name}")
    measure = getattr(module, f"bench_{row.name}")
    alone = getattr(module, f"check_{row.name}", None)
    if check and alone is not None:
        measure = alone
        values = _of_check(row, values, out, set(inspect.signature(alone).parameters))
    called = handed_on(row.options, values)
    if out is not None and hasattr(module, "check_picture"):
        module.check_picture(out, **called)
    results = measure(**called)
    if out is not None:
        wrote(module.save(results, out), json)
    _print(module, results, check, json)


def _of_check(row: Bench, values: dict[str, Any], out: Path | None, taken: set[str]) -> dict[str, Any]:
    """The values that the check of a row takes; others must not be given."""
    from formers.core import FormersError

    others = {name: value for name, value in values.items() if (row.options[name].parameter or name) not in taken}
    given = [name.strip("_") for name, value in others.items() if value not in (row.options[name].default, [])]
    given += ["out"] if out is not None else []
    if given:
        words = " and ".join(f"--{name}" for name in given)
        raise FormersError(f"--check measures at the sizes of its limits, and draws nothing: leave {words} out.")
    return {name: value for name, value in values.items() if name not in others}


def _print(module: ModuleType, results: dict[str, Any], check: bool, json: bool) -> None:
    """The tables and figures of a bench, or with json everything in a line."""
    limits = module.LIMITS if check else {}
    if json:
        end(results, limits, check, json)
        return
    if hasattr(module, "tables"):
        show(*module.tables(results))
    figures = module.figures(results) if hasattr(module, "figures") else results
    if figures:
        end(figures, limits, check, json)


for _bench in BENCHES:
    add_command(app, _bench.name, _bench.about, _bench.options, partial(run_bench, _bench), _bench.check)
for _claim in CLAIMS:
    add_command(app, _claim.name, _claim.about, _claim.options, partial(run_claim, _claim))
