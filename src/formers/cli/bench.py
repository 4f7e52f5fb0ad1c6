"""`formers bench`: times the family against the plainest code that does the same."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from formers.cli.common import Check, Json, report

app = typer.Typer(help="Time training, decoding and attention; hold what `explain` predicts against real runs.", no_args_is_help=True)

Rounds = Annotated[int, typer.Option(help="How often each side runs.", min=1)]


@app.command()
def train(
    rounds: Rounds = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """A training step of `decoder` beside the plainest decoder, alternating in one process; and the loop's own overhead."""
    from formers.bench.train import LIMITS, bench_train

    _end(bench_train(rounds), LIMITS, check, json)


@app.command()
def decode(
    context: Annotated[int, typer.Option(help="How many tokens have been read.", min=1)] = 1024,
    rounds: Rounds = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """The time per token of cached decoding beside recomputing everything, and the largest difference of their logits."""
    from formers.bench.decode import LIMITS, bench_decode

    _end(bench_decode(context, rounds), LIMITS, check, json)


@app.command()
def attention(
    length: Annotated[int, typer.Option(help="How many tokens attend to one another.", min=1)] = 8192,
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """Forward and backward passes over sparse patterns beside torch's fused kernel over all pairs, alternating in one process."""
    from formers.bench.attention import LIMITS, bench_attention

    _end(bench_attention(length, rounds), LIMITS, check, json)


@app.command()
def linformer(
    length: Annotated[list[int] | None, typer.Option(help="A length to time; may be repeated, two at least.", min=1)] = None,
    rank: Annotated[int, typer.Option(help="How many projected keys there are.", min=1)] = 64,
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """Forward and backward passes of a low-rank attention sublayer beside dense ones, and how both grow with the length."""
    from formers.bench.linformer import LENGTHS, LIMITS, bench_linformer

    _end(bench_linformer(length or LENGTHS, rank, rounds), LIMITS, check, json)


@app.command()
def explain(
    length: Annotated[list[int] | None, typer.Option(help="A length to compare at; may be repeated.", min=2)] = None,
    batch: Annotated[int, typer.Option(help="How many rows are read at a time.", min=1)] = 1,
    check: Check = False,
    json: Json = False,
) -> None:
    """The FLOPs and bytes that `formers explain` predicts, beside those of real runs, for the vanilla members."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which reads it as torch is loaded, would tell when it starts
    from formers.bench.explain import LENGTHS, LIMITS, bench_explain

    results = bench_explain(length or LENGTHS, batch)
    if not json:
        from rich.console import Console

        from formers.inspect.tables import add_row, new_table

        table = new_table("member", "length", "what", "predicted", "measured", "ratio")
        for row in results.pop("rows"):
            add_row(
                table,
                row["member"],
                f"{row['length']:,}",
                row["what"],
                f"{row['predicted']:,}",
                f"{row['measured']:,}",
                f"{row['ratio']:.4f}",
            )
        for column in (1, 3, 4, 5):
            table.columns[column].justify = "right"
        Console(highlight=False).print(table)
    _end(results, LIMITS, check, json)


def _end(results: dict[str, Any], limits: dict[str, tuple[float, float]], check: bool, json: bool) -> None:
    """Prints the results beside their limits; with check, a missed one is told and ends in exit code 1."""
    missed = [name for name, (low, high) in limits.items() if not low <= results[name] <= high]
    report(results, json)
    if check and missed:
        for name in missed:
            print(f"missed: {name} = {results[name]:.4g} is outside {limits[name][0]:g} ... {limits[name][1]:g}", file=sys.stderr)
        raise typer.Exit(1)
