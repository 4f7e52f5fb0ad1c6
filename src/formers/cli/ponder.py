"""`formers show ponder`: the ponder times of the tokens of a text, or of data by difficulty and by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from formers.cli.common import Device, Json, Out, Run, check_file, print_json, wrote
from formers.cli.complete import complete_data


def ponder(
    run: Run,
    text: Annotated[str | None, typer.Option(help="What the model reads; an encoder-decoder's source.")] = None,
    target: Annotated[str | None, typer.Option(help="An encoder-decoder's target; what it writes, the likeliest, unless given.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data to read instead of a text; the run's own unless given.", autocompletion=complete_data)
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", "--part", help="Which part of the data: valid, test or train; the held-out one unless given.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Read the first so many rows of the data; of a text, the batches that hold its first so many tokens.", min=1),
    ] = None,
    batch: Annotated[int, typer.Option(help="How many rows of the data at a time.", min=1)] = 16,
    steps: Annotated[bool, typer.Option("--steps", help="Also show the halting probabilities of each step.")] = False,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights: last or best.")] = "last",
    device: Device = "cpu",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw how many steps each token of a text takes until it halts; or of data, by difficulty."""
    check_file(out, (".png", ".svg"))
    from formers.core import FormersError

    if text is None:
        if target is not None:
            raise FormersError(f"--target {target!r} belongs to a source: give that with --text.")
        _data(run, data, split, limit, batch, steps, checkpoint, device, out, json)
        return
    for name, value in {"data": data, "split": split, "limit": limit}.items():
        if value is not None:
            raise FormersError(f"--{name} {value} is for data, not --text: leave one of them out.")
    _text(run, text, target, steps, checkpoint, device, out, json)


def _text(
    run: Path, text: str, target: str | None, steps: bool, checkpoint: Literal["last", "best"], device: str, out: Path | None, json: bool
) -> None:  # fmt: skip
    from formers.inspect import by_step, draw_ponder, ponder_facts, ponder_of, save_ponder, steps_table
    from formers.model import load
    from formers.training.device import pick_device

    model = load(run, pick_device(device), checkpoint)
    name = _named(model.spec.name, run)
    seen, flops = ponder_of(model, text, target, name)
    if out is not None:
        wrote(save_ponder(seen, out, flops, name), json)
    if json:
        print_json(ponder_facts(seen, flops, name))
    elif out is None:
        from rich.console import Console

        console = Console(highlight=False)
        console.print(draw_ponder(seen, flops, console.width, console.encoding), soft_wrap=True)
        for each in seen if steps else ():
            for shown in ("", *([each.title] if each.title else []), steps_table(by_step(each.halting, each.steps))):
                console.print(shown, markup=False, emoji=False)


def _data(
    run: Path, data: str | None, split: str | None, limit: int | None, batch: int, steps: bool, checkpoint: Literal["last", "best"],
    device: str, out: Path | None, json: bool,
) -> None:  # fmt: skip
    from formers.inspect import difficulty_facts, difficulty_table, run_difficulty, save_difficulty, steps_table
    from formers.training.log import progress_bar

    with progress_bar("reading") as tick:
        seen = run_difficulty(run, data, split, batch, limit, checkpoint, steps, tick, device)
    name = run.resolve().name
    if out is not None:
        wrote(save_difficulty(seen, out, name), json)
    if json:
        print_json(difficulty_facts(seen, name))
        return
    from rich.console import Console

    console = Console(highlight=False)
    shown = [difficulty_table(seen), "", *(f"{each.words}." for each in seen)]
    for each in seen:
        if each.steps is not None:
            shown += ["", *([each.title] if each.title else []), steps_table(each.steps)]
    for part in shown:
        console.print(part, markup=False, emoji=False)


def _named(member: str | None, run: Path) -> str:
    """A model in a caption: its member and the folder it comes from."""
    return ", ".join(dict.fromkeys(word for word in (member, run.resolve().name) if word))
