"""The `formers` command: its verbs, its errors and its exit codes.

Nothing here imports torch: verbs load what they need when they run, so that --help and --version answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from formers import __version__
from formers.cli import bench, evaluate, explain, generate, members, show, train

USAGE = 2
"""Exit code of a mistake that the user can mend."""
DIVERGED = 3
"""Exit code of a training whose loss stopped being a number."""
STOPPED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    name="formers",
    help="The Transformer family: train, run, see and time its members.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"formers {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """The Transformer family: train, run, see and time its members."""


app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("generate")(generate.generate)
app.command("eval")(evaluate.evaluate)
app.command("members")(members.members)
app.command("explain")(explain.explain)
app.add_typer(show.app, name="show")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Runs the command line; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        print("formers: stopped.", file=sys.stderr)
        code = STOPPED
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        # Empty where the parser has printed the help of a command given without arguments. Of several processes the first one speaks.
        if sentence and os.environ.get("RANK", "0") == "0":
            print(f"formers: {sentence}", file=sys.stderr)
        code = DIVERGED if type(error).__name__ == "Diverged" else USAGE
    sys.exit(code)


def _sentence(error: Exception) -> str | None:
    """What to tell the user, or None for an error that is ours."""
    if hasattr(error, "format_message"):  # a usage error of the parser; its class has moved between typer's releases
        words = str(error.format_message()).rstrip()
        context = getattr(error, "ctx", None)
        return f"{words} Try '{context.command_path} --help'." if words and context is not None else words
    from formers.core.errors import FormersError

    return str(error) if isinstance(error, FormersError) else None
