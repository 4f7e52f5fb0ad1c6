"""`formers doctor`: checks this machine or one of its devices, and lists optional packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from formers.cli.common import Json, print_json


def doctor(
    device: Annotated[
        str | None, typer.Option(help="Run the whole self-test on a device instead: cuda, cuda:1, mps, xpu, cpu; auto takes the best one.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Check an environment for agents instead: tmaze:20, MiniGrid-MemoryS7-v0, ...")] = None,
    json: Json = False,
) -> None:
    """Look at this machine: versions, devices, executors checked against the equation, data, and what to install for more."""
    if env is not None and device is not None:
        from formers.core import FormersError

        raise FormersError("--env and --device check different things: give one of them.")
    if env is not None:
        _check_environment(env, json)
        return
    if device is not None:
        _test_device(device, json)
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
    _end(complaints(facts))


def _test_device(device: str, json: bool) -> None:
    """Prints the self-test of a device, as a block to paste into an issue; exit code 1 where something is wrong."""
    from formers.inspect.draw.selftest import paste_block
    from formers.inspect.draw.terminal import sayable
    from formers.inspect.measure.doctor import self_test

    with _progress() as tick:
        facts = self_test(device, tick)
    block = paste_block(facts)
    if json:
        print_json({**facts, "block": block})
    else:
        print(sayable(block, sys.stdout.encoding or "utf-8"))
    _end([f"{line}." for line in facts["wrong"]])


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A line on a terminal's standard error that says what is checked; nothing elsewhere."""
    from rich.console import Console

    from formers.data.progress import silent

    console = Console(stderr=True, highlight=False)
    if silent() or not console.is_terminal:
        yield None
        return
    with console.status("starting") as status:
        yield lambda done, total, words: status.update(f"{done} of {total} checks done, now: {words}")


def _check_environment(env: str, json: bool) -> None:
    """Prints what is right and wrong with an environment; exit code 1 where something is wrong."""
    from formers.rl.checkup import check_environment

    found = check_environment(env)
    if json:
        print_json({"env": env, "checks": [check._asdict() for check in found]})
    for check in found if not json else ():
        print(f"{'ok ' if check.wrong is None else 'no '} {check.what}")
    _end([check.wrong for check in found if check.wrong is not None])


def _end(wrong: list[str]) -> None:
    """Prints what is wrong on standard error, and then exits with code 1."""
    for line in wrong:
        print(f"formers: {line}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)
