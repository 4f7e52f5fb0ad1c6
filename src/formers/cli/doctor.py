"""`formers doctor`: checks this machine, and lists optional packages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from formers.cli.common import Json, print_json


def doctor(
    env: Annotated[str | None, typer.Option(help="Check an environment for agents instead: tmaze:20, MiniGrid-MemoryS7-v0, ...")] = None,
    json: Json = False,
) -> None:
    """Look at this machine: versions, devices, executors checked against the equation, data, and what to install for more."""
    if env is not None:
        _check_environment(env, json)
        return
    from formers.inspect.draw.doctor import describe
    from formers.inspect.measure.doctor import complaints, examine

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


def _check_environment(env: str, json: bool) -> None:
    """Prints what is right and wrong with an environment; exit code 1 where something is wrong."""
    from formers.rl.checkup import check_environment

    found = check_environment(env)
    if json:
        print_json({"env": env, "checks": [check._asdict() for check in found]})
    for check in found if not json else ():
        print(f"{'ok ' if check.wrong is None else 'no '} {check.what}")
    wrong = [check.wrong for check in found if check.wrong is not None]
    for line in wrong:
        print(f"formers: {line}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)
