"""`formers generate`: writes with a trained model."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from formers.cli.common import Json, Run, report


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option(help="What the text begins with; an encoder-decoder's source.")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 the model's own spread.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among so many likeliest tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the fewest tokens that have this share of the probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights: last or best.")] = "last",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, mps; auto takes what is there.")] = "cpu",
    json: Json = False,
) -> None:
    """Write with the model of RUN."""
    from formers.generation import generate as write
    from formers.model import load
    from formers.training.device import pick_device

    model = load(run, pick_device(device), checkpoint)
    text = write(model, prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if json:
        report({"prompt": prompt, "text": text}, json=True)
    else:
        print(text)
