"""`formers generate RUN --interactive`: a prompt a line, answered as it is written; Ctrl-C stops an answer, Ctrl-D ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from formers.cli.common import notice
from formers.cli.options import parse_set

if TYPE_CHECKING:
    from formers.generation import Options
    from formers.model import Model

HELP = """\
Type a prompt. /set NAME=VALUE changes an option (/set temperature=0.5), /again answers the last prompt again,
/help says this, /quit or Ctrl-D ends, Ctrl-C stops an answer. A prompt that begins with a slash: put a space before it."""


def converse(model: Model, options: Options) -> None:
    """Reads prompts from standard input, a line each, and writes an answer to each, until the input ends."""
    with suppress(ImportError):  # lines can be edited and called back where Python has it
        import readline  # noqa: F401
    if sys.stdin is None:  # closed: there is no input
        return
    asking = sys.stdin.isatty()
    if asking:
        notice(HELP)
    prompt, answered = "", 0
    while True:
        try:
            line = input("> " if asking else "")
        except EOFError:
            if asking:
                print(file=sys.stderr)
            return
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return
        if word == "/help":
            print(HELP, file=sys.stderr)
            continue
        if word == "/set":
            options = _changed(options, rest)
            continue
        if word.startswith("/") and word != "/again":
            print(f"formers: {word} is no command: /set, /again, /help and /quit are.", file=sys.stderr)
            continue
        prompt, answered = (prompt, answered + 1) if word == "/again" else (line, 0)
        _answer(model, prompt, options, answered)


def _changed(options: Options, pair: str) -> Options:
    """The options with one of them changed, or as they were where that cannot be."""
    from formers.core import FormersError

    try:
        return options.replace(**parse_set([pair]))
    except FormersError as error:
        print(f"formers: {error}", file=sys.stderr)
        return options


def _answer(model: Model, prompt: str, options: Options, again: int) -> None:
    """Writes an answer as it comes; `again` counts those that came before, so that a fixed seed does not repeat itself."""
    from formers.core import FormersError

    if options.seed is not None:
        options = options.replace(seed=options.seed + again)
    try:
        say(model, prompt, options)
    except FormersError as error:
        print(f"formers: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print()


def say(model: Model, prompt: str, options: Options) -> None:
    """Writes a text to standard output as it is written: the prompt first, unless it is an encoder-decoder's source."""
    from formers.generation import stream_with, texts, tokenizer_of, whole_text

    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode(prompt)
    if options.beams is not None or options.samples > 1:
        (lines,) = texts(model, [ids], options)
        for line in lines:
            if len(lines) > 1:
                print(f"--- {line.sample + 1} of {len(lines)} ---")
            print(whole_text(model, ids, line))
        return
    pieces = stream_with(model, prompt, options)
    # What the model reads is shown, and not what was typed: bytes that are no text have become something else.
    print("" if model.spec.encoder is not None else tokenizer.decode(ids), end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
