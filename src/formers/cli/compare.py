"""`formers compare`: members side by side, with the same data, budget and number of parameters, and a verdict."""

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
    out: Annotated[Path, typer.Option(help="The folder of the runs; finished ones are not trained again, interrupted ones go on.")] = Path(
        "runs/compare"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of training for each.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training for each.")] = None,
    equal: Annotated[
        Literal["time", "steps", "tokens", "flops"] | None, typer.Option(help="What all have in equal measure; --budget says how much.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Of --equal: minutes, steps, tokens or FLOPs of each run, e.g. 2e13.")] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Parameters of each, fitted by `hidden`, or `dim`; the first member's unless given.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Judge the first so many tokens of the held-out data.", min=1)] = None,
    split: Split = None,
    seed: Annotated[int, typer.Option(help="The first seed: of weights and batches.")] = 0,
    seeds: Annotated[int | None, typer.Option(help="How many runs of each, with the seeds from --seed on; 1, of agents 3.", min=1)] = None,
    env: Annotated[str | None, typer.Option(help="Compare agents on this environment instead; --steps are then the environment's.")] = None,
    bar: Annotated[float, typer.Option(help="Of agents: from which mean of the newest episodes on a run counts as solved.")] = 0.97,
    measure: Annotated[Literal["return", "success"], typer.Option(help="Of agents: what --bar is of.")] = "return",
    device: Annotated[
        str | None, typer.Option(help="The device to compute on: cpu, cuda, cuda:1, mps; auto, the default, takes the best available.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let runs of other commands in that folder make room.")] = False,
    set_: Set = None,
    page: Annotated[Path | None, typer.Option(help="Write the table with its command into this Markdown file, too.")] = None,
    curves: Annotated[Path | None, typer.Option(help="Draw the training losses over the steps into this picture, .png or .svg.")] = None,
    json: Json = False,
) -> None:
    """Train MEMBERs one after the other, each alone, with the same budget and as many parameters, evaluate them alike, and say what
    the seeds could show."""
    from formers.compare import budget_of
    from formers.compare import compare as run
    from formers.compare.table import markdown, memory_of, shown, speed, speed_of, steps_of, titles
    from formers.core import FormersError
    from formers.family.variants import variant
    from formers.training.device import pick_device

    chosen = [variant(v, parse_set) for v in variants]
    words = shlex.join(["formers", *sys.argv[1:]])
    check_file(curves, (".png", ".svg"))
    check_file(page, (".md", ".markdown"))
    spent = budget_of(equal, budget, minutes, steps)
    if env is not None:
        if spent.equal != "steps" or parameters is not None or limit is not None:
            raise FormersError("agents are compared over the same steps of their environment: give --steps, and no other budget.")
        count = range(seed, seed + (seeds or 3))
        _compare_agents(chosen, env, out, set_, round(spent.amount), count, bar, measure, page, curves, json)
        return
    if device is not None:
        pick_device(device)  # raises before anything is trained
    common = parse_set(set_ or [])
    results = run(chosen, data, out, common, spent, parameters, limit, seed, seeds or 1, overwrite, notice, split, words, device)
    if page is not None:
        page.write_text(markdown(results, words), encoding="utf-8")
        wrote(page, json)
    if curves is not None:
        from formers.inspect import save_panels
        from formers.inspect.draw.losses import learning_panel

        panel = learning_panel({row["variant"]: row["run"] for row in results["rows"]})
        wrote(save_panels([panel], curves, f"Training losses on {data}, {spent.words} each; means over some steps."), json)
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
        most = memory_of(row)
        memory = in_bytes(most) if most else ""
        add_row(table, row["variant"], f"{row['parameters']:,}", *told, speed_of(row, results["rows"]), steps_of(row), memory)
    console = Console(highlight=False)
    console.print(table)
    for row in results["rows"]:
        if "protocol" in row:
            console.print(f"{row['variant']}: {row['protocol']}", markup=False)
    if len(results["rows"]) > 1:
        console.print("\n" + " ".join(results["verdict"]["sentences"]), markup=False)
    console.print(f"\nformers report {out} --out report.html", markup=False)


def _compare_agents(
    variants: list[Variant], env: str, out: Path, set_: list[str] | None, steps: int, seeds: range, bar: float, measure: str,
    page: Path | None, curves: Path | None, json: bool,
) -> None:  # fmt: skip
    """Trains and evaluates agents, and prints a row for each."""
    from formers.bench.agents import TITLES, cells, compare_agents, markdown, panel

    command = shlex.join(["formers", *sys.argv[1:]])
    results = compare_agents(variants, env, out, parse_set(set_ or []), steps, seeds, bar, measure, notice, command)
    if page is not None:
        page.write_text(markdown(results, command), encoding="utf-8")
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
    console = Console(highlight=False)
    console.print(table)
    if len(results["rows"]) > 1:
        console.print("\n" + " ".join(results["verdict"]["sentences"]), markup=False)
