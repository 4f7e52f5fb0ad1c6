"""`formers generate RUN --interactive`: a prompt a line, answered as it is written; Ctrl-C stops an answer, Ctrl-D ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from formers.cli.options import parse_set

if TYPE_CHECKING:
    from formers.generation import Options
    from formers.model import Model

HELP = """\
Type a prompt. /set NAME=VALUE changes an option (/set temperature=0.5), /again answers the last prompt anew,
/help says this, /quit or Ctrl-D ends, Ctrl-C stops an answer. A prompt that begins with a slash: put a space before it."""


def converse(model: Model, options: Options) -> None:
    """Reads prompts from standard input, a line each, and writes an answer to each, until the input ends."""
    with suppress(ImportError):  # lines can be edited and called back where Python has it
        import readline  # noqa: F401
    asking = sys.stdin.isatty()
    if asking:
        typer.echo(HELP, err=True)
    prompt, answered = "", 0
    while True:
        try:
            line = input("> " if asking else "")
        except EOFError:
            if asking:
                typer.echo("", err=True)
            return
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return
        if word == "/help":
            typer.echo(HELP, err=True)
            continue
        if word == "/set":
            options = _changed(options, rest)
            continue
        if word.startswith("/") and word != "/again":
            typer.echo(f"formers: {word} is no command: /set, /again, /help and /quit are.", err=True)
            continue
        prompt, answered = (prompt, answered + 1) if word == "/again" else (line, 0)
        _answer(model, prompt, options, answered)


def _changed(options: Options, pair: str) -> Options:
    """The options with one of them changed, or as they were where that cannot be."""
    from formers.core import FormersError

    try:
        return options.replace(**parse_set([pair]))
    except FormersError as error:
        typer.echo(f"formers: {error}", err=True)
        return options


def _answer(model: Model, prompt: str, options: Options, again: int) -> None:
    """Writes an answer as it comes; `again` counts those that came before, so that a fixed seed does not repeat itself."""
    from formers.core import FormersError

    if options.seed is not None:
        options = options.replace(seed=options.seed + again)
    try:
        say(model, prompt, options)
    except FormersError as error:
        typer.echo(f"formers: {error}", err=True)
    except KeyboardInterrupt:
        typer.echo("")


def say(model: Model, prompt: str, options: Options) -> None:
    """Writes a text to standard output as it is written: the prompt first, unless it is an encoder-decoder's source."""
    from formers.generation import stream_with

    if options.beams is not None or options.samples > 1:
        from formers.generation import texts, tokenizer_of

        (lines,) = texts(model, [tokenizer_of(model).encode(prompt)], options)
        for line in lines:
            if len(lines) > 1:
                typer.echo(f"--- {line.sample + 1} of {len(lines)} ---")
            typer.echo(shown(model, prompt) + line.text)
        return
    pieces = stream_with(model, prompt, options)
    typer.echo(shown(model, prompt), nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo("")


def shown(model: Model, prompt: str) -> str:
    """What stands before a text: the prompt it continues, or nothing before an answer to a source."""
    return "" if model.spec.encoder is not None else prompt
