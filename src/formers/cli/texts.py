"""`formers classify` and `formers translate`: texts from the command line, a file or standard input, and an answer for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from formers.cli.common import Device, Json, Run, print_json
from formers.cli.prompts import Prompt

if TYPE_CHECKING:
    from formers.model import Model

Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="The texts.")]
File = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Many texts: a text file of lines, a .jsonl of records with `text`, or - for standard input."),
]
Checkpoint = Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights.")]
Batch = Annotated[int, typer.Option(help="How many texts are read side by side.", min=1)]


def classify(
    run: Run,
    texts: Texts = None,
    file: File = None,
    top: Annotated[int, typer.Option(help="How many labels to print for each text, the most probable first.", min=1)] = 1,
    batch: Batch = 64,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Give each TEXT a label with the model of RUN, and say how probable it is; with --json a line of JSON for each."""
    from formers.generation import classify as answer

    def told(model: Model, prompts: list[Prompt]) -> None:
        for prompt, found in zip(prompts, answer(model, [prompt.text or "" for prompt in prompts], batch), strict=True):
            if json:
                print_json({**prompt.record, "text": prompt.text, "label": found.label, "probabilities": found.probabilities})
            else:
                best = list(found.probabilities.items())[:top]
                print("\t".join([*(f"{label} {share:.1%}" for label, share in best), _one_line(prompt.text)]))

    _answer("classify", run, texts, file, checkpoint, device, batch, told)


def translate(
    run: Run,
    texts: Texts = None,
    file: File = None,
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to write at the most.")] = 200,
    beams: Annotated[int | None, typer.Option(help="Search for the likeliest target with so many beams.")] = None,
    length_penalty: Annotated[float, typer.Option(help="Of a beam search: 0 favours short targets, more favours longer ones.")] = 0.6,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 the model's own spread.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of a temperature above 0: the same seed writes the same target.")] = None,
    batch: Batch = 64,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write the target of each TEXT with the encoder-decoder of RUN; with --json a line of JSON for each."""
    from formers.generation import translate as answer

    def told(model: Model, prompts: list[Prompt]) -> None:
        sources = [prompt.text or "" for prompt in prompts]
        found = answer(
            model, sources, max_new_tokens, beams=beams, length_penalty=length_penalty, temperature=temperature, seed=seed, batch=batch
        )
        for prompt, target in zip(prompts, found, strict=True):
            if json:
                print_json({**prompt.record, "text": prompt.text, "translation": target})
            else:
                print(target)

    _answer("translate", run, texts, file, checkpoint, device, batch, told)


def _answer(
    verb: str, run: Path, texts: list[str] | None, file: str | None, checkpoint: Literal["last", "best"], device: str, batch: int,
    told: Callable[[Model, list[Prompt]], None],
) -> None:  # fmt: skip
    """Reads the texts, loads the model, and lets it answer, some texts at a time."""
    from formers.cli.prompts import read_prompts
    from formers.core import FormersError
    from formers.generation.kinds import refuse_other
    from formers.model import load
    from formers.training.device import pick_device

    if bool(texts) == (file is not None):
        what = "two ways give texts" if texts else "there is no text"
        raise FormersError(f"{what}: give TEXTs, or --file FILE, or --file - for standard input.")
    model = load(run, pick_device(device), checkpoint)
    refuse_other(model, verb, str(run))
    prompts = [Prompt(text) for text in texts or ()] or read_prompts(file or "-")
    if not prompts:
        raise FormersError(f"{file} has no text: give a line for each.")
    if any(prompt.text is None for prompt in prompts):
        raise FormersError(f"{file} has token ids, and {verb} reads texts: give them as `text`.")
    for start in range(0, len(prompts), batch):
        told(model, prompts[start : start + batch])


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())
