"""`formers show losses` and `formers show context`: how trained models use their context, measured on held-out text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from formers.cli.common import Device, Json, Out, Split, check_file, print_json, wrote
from formers.cli.complete import complete_data, complete_run

Runs = Annotated[list[Path], typer.Argument(help="One run or more.", autocompletion=complete_run)]
Data = Annotated[str | None, typer.Option(help="The data to evaluate on; default: those of each run.", autocompletion=complete_data)]
Checkpoint = Annotated[Literal["last", "best"], typer.Option(help="Which of the runs' weights: last or best.")]


def losses(
    runs: Runs,
    data: Data = None,
    split: Split = None,
    limit: Annotated[int, typer.Option(help="Evaluate only this many tokens, from the start.", min=1)] = 100_000,
    batch: Annotated[int, typer.Option(help="Number of segments per batch.", min=1)] = 16,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw the loss by the position within the segment. A run with a memory is drawn with it and without."""
    check_file(out, (".png", ".svg"))
    from formers.inspect import draw_curves, losses_facts, losses_panel, run_losses, save_panels
    from formers.training.log import progress_bar

    with progress_bar("evaluating") as tick:
        found = [each for run in runs for each in run_losses(run, data, split, batch, limit, checkpoint, tick, device)]
    panel = losses_panel(found)
    if out is not None:
        caption = "The mean loss by the position within the segment. A segment read alone starts without context."
        wrote(save_panels([panel], out, caption), json)
    if json:
        print_json(losses_facts(found))
    elif out is None:
        _print(draw_curves(panel, *_screen()))


def context(
    runs: Runs,
    data: Data = None,
    split: Split = None,
    tokens: Annotated[int, typer.Option(help="Number of tokens to evaluate, each with every context.", min=1)] = 500,
    step: Annotated[int | None, typer.Option(help="From one context to the next; an eighth of the longest unless given.", min=1)] = None,
    longest: Annotated[int | None, typer.Option(help="The longest context; twice what a model sees at once unless given.", min=2)] = None,
    top: Annotated[
        list[float] | None,
        typer.Option(help="The share of tokens that count, hardest first; may be repeated; 0.1, 0.5 and 1 unless given.", min=0.0, max=1.0),
    ] = None,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw the loss against the length of the context, and print the relative effective context length of RUNS as a group."""
    check_file(out, (".png", ".svg"))
    from formers.inspect import context_facts, context_panels, context_words, draw_curves, run_contexts, save_panels
    from formers.inspect.draw.context_length import share_words
    from formers.inspect.draw.tables import add_row, new_table
    from formers.training.log import progress_bar

    tops = top or [0.1, 0.5, 1.0]
    with progress_bar("evaluating") as tick:
        found = run_contexts(runs, data, split, tokens, step, longest, checkpoint, tick, device)
    panels = context_panels(found, tops[0])
    if out is not None:
        wrote(save_panels(panels, out, context_words(found)), json)
    if json:
        print_json(context_facts(found, tops))
        return
    if out is None:
        _print(*(draw_curves(panel, *_screen()) for panel in panels))
    table = new_table("effective context length", *(share_words(share) for share in tops), right=len(tops))
    lengths = [found.lengths(share) for share in tops]
    for i, name in enumerate(found.names):
        add_row(table, name, *(f"{row[i]:,}" if row[i] is not None else f"{found.contexts[-1]:,} or more" for row in lengths))
    _print(table, context_words(found))


def _screen() -> tuple[int, str]:
    from rich.console import Console

    console = Console()
    return console.width, console.encoding


def _print(*shown: object) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for each in shown:
        console.print(each, markup=False, emoji=False, soft_wrap=isinstance(each, str) and "\n" in each)
        console.print()
