"""`formers compare`: members side by side, with the same data, time and number of parameters."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from formers.cli.common import Json, Set, Split, check_file, notice, print_json, wrote
from formers.cli.complete import complete_data, complete_member
from formers.cli.options import parse_set

if TYPE_CHECKING:
    from formers.family.variants import Variant


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
    env: Annotated[str | None, typer.Option(help="Compare agents on this environment instead; --steps are then the environment's.")] = None,
    seeds: Annotated[int, typer.Option(help="Of agents: how many runs of each, with the seeds from --seed on.", min=1)] = 3,
    bar: Annotated[float, typer.Option(help="Of agents: from which mean of the newest episodes on a run counts as solved.")] = 0.97,
    measure: Annotated[Literal["return", "success"], typer.Option(help="Of agents: what --bar is of.")] = "return",
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

    if env is not None:
        if steps is None or minutes is not None or parameters is not None or limit is not None:
            raise FormersError("agents are compared over the same steps of their environment: give --steps, and no other budget.")
        check_file(curves, (".png", ".svg"))
        _compare_agents(
            [variant(v, parse_set) for v in variants], env, out, set_, steps, range(seed, seed + seeds), bar, measure, page, curves, json
        )
        return
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
        from formers.inspect.draw.losses import learning_panel

        budget = f"{minutes:g} minutes" if minutes is not None else f"{steps:,} steps"
        panel = learning_panel({row["variant"]: row["run"] for row in results["rows"]})
        wrote(save_panels([panel], curves, f"Training losses on {data}, {budget} each; means over some steps."), json)
    if json:
        print_json(results)
        return
    from rich.console import Console

    from formers.inspect.draw.tables import add_row, new_table
    from formers.inspect.measure.units import in_bytes

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


def _compare_agents(
    variants: list[Variant], env: str, out: Path, set_: list[str] | None, steps: int, seeds: range, bar: float, measure: str,
    page: Path | None, curves: Path | None, json: bool,
) -> None:  # fmt: skip
    """Trains and evaluates agents, and prints a row for each."""
    from formers.bench.agents import TITLES, cells, compare_agents, markdown, panel

    results = compare_agents(variants, env, out, parse_set(set_ or []), steps, seeds, bar, measure, notice)
    if page is not None:
        page.write_text(markdown(results, shlex.join(["formers", *sys.argv[1:]])), encoding="utf-8")
        wrote(page, json)
    if curves is not None:
        from formers.inspect import save_panels

        band = "; shaded: 95 % bootstrap interval of the mean" if len(seeds) > 1 else ""
        caption = f"Agents on {env}: mean of {len(seeds)} seed{'s' if len(seeds) > 1 else ''}{band}."
        wrote(save_panels([panel(results)], curves, caption), json)
    if json:
        print_json(results)
        return
    from rich.console import Console

    from formers.inspect.draw.tables import add_row, new_table

    table = new_table(*TITLES, right=len(TITLES) - 1)
    for row in results["rows"]:
        add_row(table, *cells(row))
    Console(highlight=False).print(table)
