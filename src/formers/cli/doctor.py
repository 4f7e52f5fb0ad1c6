"""`formers doctor`: what is here, what works, and what to install for more."""

from __future__ import annotations

import sys

import typer

from formers.cli.common import Json, print_json


def doctor(json: Json = False) -> None:
    """Look at this machine: versions, devices, executors checked against the equation, data, and what to install for more."""
    from formers.inspect.doctor import complaints, describe, examine

    facts = examine()
    if json:
        print_json(facts)
    else:
        from rich.console import Console

        console = Console(highlight=False)
        console.print(describe(facts, console.encoding))
    wrong = complaints(facts)
    for line in wrong:
        print(f"formers: {line}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)
