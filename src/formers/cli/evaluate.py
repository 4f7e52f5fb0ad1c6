"""`formers eval`: evaluates a trained model on held-out data."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from formers.cli.common import Device, Json, Run, Split, report
from formers.cli.complete import complete_data


def evaluate(
    run: Run,
    data: Annotated[
        str | None, typer.Option(help="The data to evaluate on; default: those of the run.", autocompletion=complete_data)
    ] = None,
    split: Split = None,
    protocol: Annotated[
        Literal["segments", "memory", "sliding"] | None,
        typer.Option(
            help="How a text is read: windows alone, segments with a memory, or a window for every token; the run's own unless given."
        ),
    ] = None,
    attention_length: Annotated[
        int | None,
        typer.Option(help="The context: the tokens of a window, or of the memory; default: that of the run.", min=0),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option("--segment", "--context", help="Tokens read at a time: a segment, or without a memory a window.", min=1),
    ] = None,
    clamp: Annotated[int | None, typer.Option(help="Larger relative distances are treated as this one.", min=1)] = None,
    same_length: Annotated[
        bool | None, typer.Option("--same-length/--no-same-length", help="With a memory: every token attends to the same number of tokens.")
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens between two sliding windows; default 1.", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Hashing rounds of a reformer; the run's own unless given.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Evaluate only the first LIMIT tokens of a text, or rows of other data.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Batch size; with a memory the number of lanes of a text, 1 for one stream.", min=1)] = 16,
    episodes: Annotated[int | None, typer.Option(help="For an agent: number of new episodes; default 200.", min=1)] = None,
    env: Annotated[str | None, typer.Option(help="For an agent: the environment; default: that of the run.")] = None,
    seed: Annotated[int, typer.Option(help="For an agent: seed of the episodes.", min=0)] = 0,
    sampled: Annotated[bool, typer.Option("--sampled", help="For an agent: sample actions, instead of the most probable ones.")] = False,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights.")] = "last",
    device: Device = "auto",
    precision: Annotated[
        Literal["float32", "tf32", "bf16", "fp16"],
        typer.Option(help="The precision of the products, whatever the run was trained in; fp16 needs a GPU."),
    ] = "float32",
    json: Json = False,
) -> None:
    """Evaluate the model of RUN on held-out data, or an agent on new episodes: the metrics and the protocol."""
    from formers.core import FormersError
    from formers.evaluation.protocol import Protocol
    from formers.training.folder import is_agent
    from formers.training.log import finite, progress_bar
    from formers.training.run import evaluate_run

    if is_agent(run):
        for name, value in (("data", data), ("split", split), ("protocol", protocol), ("segment", segment), ("limit", limit)):
            if value is not None:
                raise FormersError(f"--{name} is for data, and {run} is the run of an agent: leave it out; --episodes says how many.")
        from formers.rl import evaluate_agent

        with progress_bar("evaluating") as tick:
            found = evaluate_agent(run, episodes or 200, env=env, seed=seed, sample=sampled, checkpoint=checkpoint, progress=tick)
        report({"run": str(run), **found}, json)
        return
    if episodes is not None or env is not None:
        raise FormersError(f"--{'episodes' if episodes is not None else 'env'} is for agents, and {run} is none: leave it out.")
    asked = Protocol(
        kind=protocol, attention_length=attention_length, segment=segment, clamp=clamp, same_length=same_length, stride=stride,
        rounds=rounds,
    )  # fmt: skip
    with progress_bar("evaluating") as tick:
        results = evaluate_run(
            run, data, batch, part=split, protocol=asked, limit=limit, checkpoint=checkpoint, device=device, progress=tick,
            precision=precision,
        )  # fmt: skip
    named = {"run": str(run), **results}
    report(finite(named) if json else named, json)
