"""`formers train`: trains a member and prints what it reached."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from formers.cli.common import Json, Set, report
from formers.cli.options import parse_set


def train(
    member: Annotated[str, typer.Argument(help="Which member; `formers members` lists them.")],
    data: Annotated[str, typer.Option(help="A text file, a .tsv file of pairs, or stdlib: the running Python's own sources.")] = "stdlib",
    out: Annotated[
        Path | None, typer.Option(help="The folder to save the run in; runs/MEMBER, or the next free name, unless given.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes.")] = None,
    preset: Annotated[str | None, typer.Option(help="A named configuration: base is the paper's.")] = None,
    set_: Set = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the batches.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, mps; auto takes what is there.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    counts: Annotated[bool, typer.Option("--counts", help="Fit an order-3 count model to the same text, for comparison.")] = False,
    sample: Annotated[int, typer.Option(help="How many tokens of text to write at the end.")] = 0,
    prompt: Annotated[str, typer.Option(help="What the text written at the end begins with.")] = "",
    json: Json = False,
) -> None:
    """Train MEMBER on a text or on pairs, with a live bar, and judge it on held-out data."""
    from formers.training import train as run

    folder = out or unused(Path("runs") / member)
    options = parse_set(set_ or [])
    for name in options:
        if name in ("data", "device", "member", "minutes", "out", "overwrite", "preset", "quiet", "seed", "steps"):
            from formers.core import FormersError

            raise FormersError(f"{name} is not a size or setting of --set: give it as --{name}, or leave it out.")
    done = run(member, data, folder, steps=steps, minutes=minutes, preset=preset, seed=seed, device=device, overwrite=overwrite, **options)
    results: dict[str, Any] = {"run": str(folder), **done.results}
    pairs = done.task.text is None
    if sample and done.task.spec.head.writes and (prompt or not pairs):
        from formers.generation import generate

        text = generate(done.model, prompt, max_new_tokens=sample, temperature=0.8, seed=seed)
        typer.echo(f"\n--- a sample ---\n{text}\n----------------\n")
    elif sample:
        why = "give --prompt, the source to read" if pairs else f"{member} does not write text"
        typer.echo(f"no sample: {why}", err=True)
    if counts and pairs:
        typer.echo(f"{member} was not trained on a text: no count model", err=True)
    elif counts and done.task.text is not None:
        from formers.baselines import CountModel

        counted = CountModel(done.task.text.train.numpy(), order=3)
        results["count_bits_per_byte"] = counted.bits_per_byte(done.task.text.valid.numpy())
    report(results, json)


def unused(folder: Path) -> Path:
    """The folder, or with -2, -3, ... behind its name the first that is not there yet."""
    tries = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in itertools.count(1))
    return next(f for f in tries if not f.exists())
