"""`formers compare`: members side by side, with the same data, time and number of parameters."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Json, Set, Split, check_file, notice, print_json, wrote
from formers.cli.complete import complete_data, complete_member
from formers.cli.options import parse_set


def compare(
    variants: Annotated[
        list[str],
        typer.Argument(
            metavar="MEMBER[:NAME=VALUE,...]...", help="Members, perhaps with options of their own.", autocompletion=complete_member
        ),
    ],
    data: Annotated[str, typer.Option(help="What all learn from, as `train` takes it.", autocompletion=complete_data)] = "stdlib",
    out: Annotated[Path, typer.Option(help="The folder of the runs; those that are finished are not trained again.")] = Path(
        "runs/compare"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of training for each.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training for each.")] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Parameters of each, fitted by `hidden`, or `dim`; the first member's unless given.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Judge the first so many tokens of the held-out data.", min=1)] = None,
    split: Split = None,
    seed: Annotated[int, typer.Option(help="Seed of each: weights and batches.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let runs of other commands in that folder make room.")] = False,
    set_: Set = None,
    page: Annotated[Path | None, typer.Option(help="Write the table with its command into this Markdown file, too.")] = None,
    curves: Annotated[Path | None, typer.Option(help="Draw the training losses over the steps into this picture, .png or .svg.")] = None,
    json: Json = False,
) -> None:
    """Train MEMBERs one after the other, each alone, for the same time and with as many parameters, and judge them alike."""
    from formers.bench.compare import compare as run
    from formers.bench.compare import markdown, shown, speed, speed_of, titles
    from formers.core import FormersError
    from formers.family.variants import variant

    if (minutes is None) == (steps is None):
        raise FormersError("a comparison needs one budget for all: give --minutes or --steps.")
    check_file(curves, (".png", ".svg"))
    check_file(page, (".md", ".markdown"))
    chosen = [variant(v, parse_set) for v in variants]
    results = run(chosen, data, out, parse_set(set_ or []), minutes, steps, parameters, limit, seed, overwrite, notice, split)
    if page is not None:
        page.write_text(markdown(results, shlex.join(["formers", *sys.argv[1:]])), encoding="utf-8")
        wrote(page, json)
    if curves is not None:
        from formers.inspect import save_panels
        from formers.inspect.learning import learning_panel

        budget = f"{minutes:g} minutes" if minutes is not None else f"{steps:,} steps"
        panel = learning_panel({row["variant"]: row["run"] for row in results["rows"]})
        wrote(save_panels([panel], curves, f"Training losses on {data}, {budget} each; means over some steps."), json)
    if json:
        print_json(results)
        return
    from rich.console import Console

    from formers.inspect.tables import add_row, in_bytes, new_table

    figures = titles(results["rows"])
    table = new_table("", "parameters", *figures, speed(results["rows"])[0], "steps", "peak memory", right=4 + len(figures))
    for row in results["rows"]:
        told = [shown(row, title) for title in figures]
        memory = in_bytes(row["peak_memory_bytes"]) if row["peak_memory_bytes"] else ""
        add_row(table, row["variant"], f"{row['parameters']:,}", *told, speed_of(row, results["rows"]), f"{row['steps']:,}", memory)
    console = Console(highlight=False)
    console.print(table)
    for row in results["rows"]:
        console.print(f"{row['variant']}: {row['protocol']}", markup=False)
