"""`formers ablate`: trains a member whole and without one part at a time, and compares the losses."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Device, Json, Set, check_file, notice, print_json, wrote
from formers.cli.complete import complete_ablation, complete_data, complete_member
from formers.cli.options import parse_set


def ablate(
    member: Annotated[str, typer.Argument(help="The member; it has one stack.", autocompletion=complete_member)] = "decoder",
    data: Annotated[str, typer.Option(help="Training data for all runs, as for `train`.", autocompletion=complete_data)] = "stdlib",
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="Remove only this part: positions, feed-forward, mask, residual, norm, scaling, heads; may be repeated.",
            autocompletion=complete_ablation,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps of each run.", min=1)] = 400,
    seeds: Annotated[int, typer.Option(help="Number of runs of each, with seeds 0, 1, ...", min=1)] = 3,
    device: Device = "auto",
    set_: Set = None,
    page: Annotated[Path | None, typer.Option(help="Write the table with its command into this Markdown file, too.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Draw the losses as bars into this picture, .png or .svg, too.")] = None,
    json: Json = False,
) -> None:
    """Ablation study: train MEMBER whole and without each of its parts, and print the losses. Runs are not saved."""
    check_file(out, (".png", ".svg"))
    check_file(page, (".md", ".markdown"))
    from formers.experiments.ablate import WORDS, cells, markdown, panels, settings_words
    from formers.experiments.ablate import ablate as run
    from formers.training.log import progress_bar

    with progress_bar("training") as tick:
        results = run(member, data, without or (), steps, seeds, parse_set(set_ or []), notice, tick, device)
    if out is not None:
        from formers.inspect.draw.bars import save_bars

        wrote(save_bars(panels(results), out, f"Without one part each. {settings_words(results)} Dots are seeds."), json)
    if page is not None:
        beside = None if out is None else Path(os.path.relpath(out, page.parent))
        page.write_text(markdown(results, shlex.join(["formers", *sys.argv[1:]]), beside), encoding="utf-8")
        wrote(page, json)
    if json:
        print_json(results)
        return
    from rich.console import Console

    from formers.inspect.draw.tables import add_row, new_table

    titles, rows = cells(results)
    table = new_table(*titles, right=len(titles) - 1)
    for row in rows:
        add_row(table, *row)
    console = Console(highlight=False)
    for shown in (table, "", f"{settings_words(results)} {WORDS}"):
        console.print(shown, markup=False, emoji=False)
