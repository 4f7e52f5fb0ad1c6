"""`formers choose`: which members can do a job, what they cost here, and which to try first."""

from __future__ import annotations

from typing import Annotated

import typer

from formers.cli.common import Device, Json, MemberSet, print_json
from formers.cli.complete import complete_data
from formers.cli.options import parse_set


def choose(
    data: Annotated[
        str | None,
        typer.Option(help="What to learn, as `train` takes it; says task and length.", autocompletion=complete_data),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a row, where no --data says it; a token is a byte.")] = None,
    task: Annotated[str | None, typer.Option(help="text, masked, classify, translate or images; text unless --data says.")] = None,
    device: Device = "auto",
    ram: Annotated[float | None, typer.Option(help="GB of memory that a training step may take; that of the machine unless given.")] = None,
    set_: MemberSet = None,
    json: Json = False,
) -> None:
    """Say which members can do the job, what each costs on this machine, and which two or three to try first. It claims no quality."""
    from formers.choose import choose as run
    from formers.choose import situation
    from formers.training.log import progress_bar

    job = situation(data, length, task)
    with progress_bar("measuring") as tick:
        found = run(job, device, ram, parse_set(set_ or []), tick)
    if json:
        print_json(found)
        return
    from rich.console import Console

    from formers.choose.show import page

    console = Console(highlight=False)
    console.print(page(found))
