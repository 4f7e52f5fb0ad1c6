"""`formers eval`: judges a trained model on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Json, report


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run, or any folder that save_pretrained wrote.")],
    data: Annotated[str | None, typer.Option(help="The data to judge by; the run's own unless given. Its held-out part counts.")] = None,
    batch: Annotated[int, typer.Option(help="How many sequences at a time.", min=1)] = 16,
    json: Json = False,
) -> None:
    """Judge the model of RUN on the held-out part of its data."""
    from formers.training import evaluate_run

    report({"run": str(run), **evaluate_run(run, data, batch)}, json)
