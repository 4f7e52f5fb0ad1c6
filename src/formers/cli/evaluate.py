"""`formers eval`: judges a trained model on held-out data."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from formers.cli.common import Json, Run, report
from formers.cli.complete import complete_data


def evaluate(
    run: Run,
    data: Annotated[
        str | None, typer.Option(help="The data to judge by; the run's own unless given.", autocompletion=complete_data)
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which part of the data: valid, test or train; the held-out one unless given.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a window; the model's length unless given.", min=1)] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens from one window to the next; less than the context overlaps.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Judge the first so many tokens of a text, or rows of other data.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="How many sequences at a time.", min=1)] = 16,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights.")] = "last",
    device: Annotated[str, typer.Option(help="Where to judge: cpu, cuda, mps; auto takes what is there.")] = "auto",
    json: Json = False,
) -> None:
    """Judge the model of RUN on held-out data: the figures, and the protocol that they were counted by."""
    from formers.training.log import finite, progress_bar
    from formers.training.run import evaluate_run

    with progress_bar("judging") as tick:
        results = evaluate_run(
            run, data, batch, part=split, context=context, stride=stride, limit=limit, checkpoint=checkpoint, device=device, progress=tick
        )
    named = {"run": str(run), **results}
    report(finite(named) if json else named, json)
