"""`formers generate`: generates text or images with a trained model."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from formers.cli.common import Json, Run, print_json
from formers.cli.prompts import Prompt

if TYPE_CHECKING:
    from formers.generation import Line, Options
    from formers.model import Model


def generate(
    run: Run,
    words: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="What the text begins with; an encoder-decoder's source.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The same, where it would be taken for an option.")] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Many prompts: a text file of lines, a .jsonl of records, or - for standard input.")
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Read prompts interactively, and answer each.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token, 1 samples from the model's distribution.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many most likely tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the smallest set of tokens with this total probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sample from tokens with at least this share of the largest probability.")] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 makes tokens already in the text less likely.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be repeated.")] = None,
    samples: Annotated[int, typer.Option(help="Number of texts per prompt.")] = 1,
    beams: Annotated[int | None, typer.Option(help="Beam search with this many beams, instead of sampling.")] = None,
    length_penalty: Annotated[float, typer.Option(help="For beam search: 0 favours short texts, larger values favour longer ones.")] = 0.6,
    class_: Annotated[str | None, typer.Option("--class", help="Of images: the class to draw, by its name or number.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of images: complete this one; a file, or SET:NUMBER such as digits:7.")
    ] = None,
    keep: Annotated[str | None, typer.Option(help="What of --image is kept: top, bottom, left, right, or a number of rows.")] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of images: the small or grey image to draw from, or SET:NUMBER, from which it is made."),
    ] = None,
    nearest: Annotated[bool, typer.Option("--nearest", help="Of images: below each sample, the nearest training image.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Of images: write them to a .png, or to a .gif in which they grow.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed generates the same text or images.")] = None,
    batch: Annotated[int, typer.Option(help="Number of texts generated at once.", min=1)] = 64,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights: last or best.")] = "last",
    device: Annotated[str, typer.Option(help="The device: cpu, cuda, cuda:1, mps; auto takes the best available.")] = "auto",
    json: Json = False,
) -> None:
    """Generate with the model of RUN: text as it is generated, or with --json a line of JSON per text. A run of images draws images."""
    from formers.cli.interactive import converse, say
    from formers.core import FormersError
    from formers.generation import Options
    from formers.model import load
    from formers.training.device import pick_device

    ways = {"PROMPT": words, "--prompt": prompt, "--prompts": prompts, "--interactive": interactive or None}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise FormersError(f"{' and '.join(given)} cannot be combined: give prompts with one of them.")
    if interactive and json:
        raise FormersError("--interactive and --json cannot be combined: use one of them.")
    options = Options(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, stop=tuple(stop or ()),
        repetition_penalty=repetition_penalty, seed=seed, samples=samples, beams=beams, length_penalty=length_penalty,
    )  # fmt: skip
    prompt = words or prompt or ""
    model = load(run, pick_device(device), checkpoint)
    images = {"--class": class_, "--image": image, "--keep": keep, "--source": source, "--nearest": nearest or None, "--out": out}
    if model.spec.image is not None:
        from formers.cli.draw import draw

        usual = Options()
        texts = {
            "--stop": stop, "--beams": beams, "--min-p": min_p, "--repetition-penalty": repetition_penalty != usual.repetition_penalty,
            "--max-new-tokens": max_new_tokens != usual.max_new_tokens, "--length-penalty": length_penalty != usual.length_penalty,
        }  # fmt: skip
        wrong = next((name for name, value in {**dict.fromkeys(given, True), **texts}.items() if value), None)
        if wrong is not None:
            raise FormersError(
                f"{wrong} is for text, and {run} draws images: leave it out; --class, --image and --source say what to draw."
            )
        draw(
            model, run=run, samples=samples, label=class_, image=image, keep=keep, source=source, nearest=nearest, out=out,
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, batch=batch, json=json,
        )  # fmt: skip
        return
    wrong = next((name for name, value in images.items() if value is not None), None)
    if wrong is not None:
        raise FormersError(f"{wrong} is for images, and {run} writes text: leave it out.")
    if interactive:
        converse(model, options)
    elif prompts is None and not json:
        say(model, prompt, options)
    else:
        from formers.cli.prompts import read_prompts

        _write_all(model, [Prompt(prompt)] if prompts is None else read_prompts(prompts), options, batch, json)


def _write_all(model: Model, prompts: list[Prompt], options: Options, batch: int, json: bool) -> None:
    """Generates for every prompt, with a bar on standard error, and prints the texts in order as soon as they are done."""
    from formers.generation import texts, tokenizer_of, whole_text
    from formers.training.log import progress_bar

    tokenizer = tokenizer_of(model)
    ids = [prompt.encoded(tokenizer) for prompt in prompts]
    # Texts on the terminal show the progress themselves.
    with nullcontext(lambda done, total: None) if sys.stdout.isatty() else progress_bar("writing") as tick:
        for number, lines in enumerate(texts(model, ids, options, batch)):
            for line in lines:
                whole = whole_text(model, ids[number], line)
                if json:
                    print_json(_facts(prompts[number], tokenizer.decode(ids[number]), whole, line, options))
                else:
                    print(whole)
            tick(number + 1, len(prompts))


def _facts(asked: Prompt, prompt: str, text: str, line: Line, options: Options) -> dict[str, Any]:
    """The JSON of a text: its record, the text with and without its prompt, its ids, and why it ended."""
    found = {"completion": line.text, "completion_ids": line.ids, "sample": line.sample, "why": line.why}
    score = {} if options.beams is None else {"score": line.score}
    return {**asked.record, "prompt": prompt, "text": text, **found, **score}
