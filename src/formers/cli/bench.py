"""`formers bench`: times the family against the plainest code that does the same."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from formers.cli.common import Check, Json, report

app = typer.Typer(help="Time training and decoding.", no_args_is_help=True)


@app.command()
def train(
    rounds: Annotated[int, typer.Option(help="How often each side runs.", min=1)] = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """A training step of `decoder` beside the plainest decoder, alternating in one process; and the loop's own overhead."""
    from formers.bench.train import LIMITS, bench_train

    _end(bench_train(rounds), LIMITS, check, json)


@app.command()
def decode(
    context: Annotated[int, typer.Option(help="How many tokens have been read.", min=1)] = 1024,
    rounds: Annotated[int, typer.Option(help="How often each side runs.", min=1)] = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """The time per token of cached decoding beside recomputing everything, and the largest difference of their logits."""
    from formers.bench.decode import LIMITS, bench_decode

    _end(bench_decode(context, rounds), LIMITS, check, json)


def _end(results: dict[str, float], limits: dict[str, tuple[float, float]], check: bool, json: bool) -> None:
    """Prints the results beside their limits; with check, a missed one is told and ends in exit code 1."""
    missed = [name for name, (low, high) in limits.items() if not low <= results[name] <= high]
    report(results, json)
    if check and missed:
        for name in missed:
            print(f"missed: {name} = {results[name]:.4g} is outside {limits[name][0]:g} ... {limits[name][1]:g}", file=sys.stderr)
        raise typer.Exit(1)
