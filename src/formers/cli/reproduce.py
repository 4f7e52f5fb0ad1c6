"""`formers reproduce`: trains models to show a claim, or lists the claims. Its commands are made of CLAIMS in cli/benches.py."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from formers.cli.ablate import ablate
from formers.cli.benches import CLAIMS, Claim
from formers.cli.common import Json, check_file, print_json, wrote
from formers.cli.limits import end, show
from formers.cli.rows import add_command, handed_on

app = typer.Typer(help="Train models to show a claim; without a name, list the claims.", invoke_without_command=True)


@app.callback()
def claims(ctx: typer.Context, json: Json = False) -> None:
    """Train models to show a claim; without a name, list the claims."""
    if ctx.invoked_subcommand is not None:
        return
    if json:
        print_json([{"name": row.name, "about": row.about} for row in CLAIMS])
        return
    width = max(len(row.name) for row in CLAIMS)
    for row in CLAIMS:
        print(f"{row.name:<{width}}  {row.about}")
    print(f"\nRun one with `formers reproduce {CLAIMS[0].name}`; --check exits with code 1 where a figure is missed.")


def run_claim(row: Claim, values: dict[str, Any]) -> None:
    """Runs an experiment: its rows as they are found, its closing table, its figures; picture and page where they are asked for."""
    check, json, seeds = values.pop("check"), values.pop("json"), values.pop("seeds", 1)
    out, page = values.pop("out", None), values.pop("page", None)
    check_file(out, (".png", ".svg"))
    check_file(page, (".md", ".markdown"))
    what = getattr(import_module(f"formers.experiments.{row.name}"), row.experiment)(**handed_on(row.options, values))
    widths = [max(map(len, (*what.names(), what.titles[0]))), *(len(title) for title in what.titles[1:])]

    def say(words: Sequence[str]) -> None:
        if not json:
            right = [f"{word:>{width}}" for word, width in zip(words[1:], widths[1:], strict=True)]
            print("  ".join([f"{words[0]:<{widths[0]}}", *right]), flush=True)

    say(what.titles)
    results = what.run(seeds, lambda found: say(what.cells(found)))
    if out is not None:
        wrote(what.save(results, out), json)
    if page is not None:
        from formers.experiments.experiment import onto

        beside = None if out is None else Path(os.path.relpath(out, page.parent))
        wrote(onto(page, what.markdown(results, shlex.join(["formers", *sys.argv[1:]]), beside)), json)
    if not json:
        print()
        show(*what.closing(results))
        results = {name: results[name] for name in what.limits}
    end(results, what.limits, check, json)


for _claim in CLAIMS:
    add_command(app, _claim.name, _claim.about, _claim.options, partial(run_claim, _claim))
app.command("ablate")(ablate)
