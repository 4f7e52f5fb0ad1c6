"""The `formers` command: its verbs, its errors and its exit codes.

Nothing here imports torch: verbs load what they need when they run, so --help, --version and completion are fast.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from typing import Annotated

import typer
import typer.main

from formers import __version__
from formers.cli import (
    ablate,
    bench,
    choose,
    compare,
    doctor,
    evaluate,
    explain,
    generate,
    members,
    play,
    report,
    reproduce,
    serve,
    show,
    texts,
    train,
)
from formers.cli.verbosity import Verbs

NAME = "formers"
COMPLETING = "_FORMERS_COMPLETE"
"""The environment variable with which a shell requests completions."""
FAILED = 1
"""Exit code of a failed check, and of a closed output pipe."""
USAGE = 2
"""Exit code of a mistake that the user can fix."""
DIVERGED = 3
"""Exit code of a training that diverged."""
STOPPED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    name=NAME,
    cls=Verbs,
    help="The Transformer family: train, run, see and time its members.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"formers {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """The Transformer family: train, run, see and time its members."""


app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("generate")(generate.generate)
app.command("classify")(texts.classify)
app.command("translate")(texts.translate)
app.command("eval")(evaluate.evaluate)
app.command("play")(play.play)
app.command("choose")(choose.choose)
app.command("serve")(serve.serve)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("ablate")(ablate.ablate)
app.command("members")(members.members)
app.command("explain")(explain.explain)
app.add_typer(show.app, name="show")
app.add_typer(bench.app, name="bench")
app.add_typer(reproduce.app, name="reproduce")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Runs the command line; a user's mistake is one sentence on standard error and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the encoding lacks are escaped, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):  # undecodable input is kept as bytes, whatever the encoding of the terminal
        sys.stdin.reconfigure(errors="surrogateescape")
    code = _run()
    try:
        if sys.stdout is not None:  # None if it was closed before the start: `formers members >&-`
            sys.stdout.flush()
    except OSError as error:  # `formers members | head -1`, or a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would flush, and fail, again at exit
        if (sentence := _sentence(error)) is not None and not code:
            print(f"formers: {sentence}", file=sys.stderr)
            code = USAGE
        code = code or FAILED
    sys.exit(code)


def _run() -> int | None:
    """The exit code of the command in sys.argv."""
    verbs = typer.main.get_command(app)
    assert isinstance(verbs, Verbs)
    try:
        code: int | None = verbs(prog_name=NAME, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except Exception as error:
        if os.environ.get(COMPLETING):  # completion without results prints nothing
            return FAILED
        sentence = _sentence(error)
        if sentence is None:
            raise
        # Empty if the parser has printed the help of a command without arguments. Only the first of several processes prints.
        if sentence and os.environ.get("RANK", "0") == "0":
            if verbs.verbosity.verbose and not _of_parser(error):
                traceback.print_exc()
            print(f"formers: {sentence}", file=sys.stderr)
        return DIVERGED if type(error).__name__ == "Diverged" else USAGE
    if code == STOPPED:  # typer's newer releases make this of Ctrl-C themselves; what was being written ends with its line
        print("\nformers: stopped.", file=sys.stderr)
    return code


def _of_parser(error: Exception) -> bool:
    """Whether an error is one of usage; its class has moved between typer's releases."""
    return hasattr(error, "format_message")


def _sentence(error: Exception) -> str | None:
    """The error message for the user; None for an internal error."""
    if _of_parser(error):
        words = str(error.format_message()).rstrip()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        return f"{words} Try '{context.command_path} --help'." if words and context is not None else words
    if isinstance(error, OSError):
        what = error.filename or "the output"
        return f"cannot write {what} ({error.strerror}): make room, or write elsewhere." if error.errno == errno.ENOSPC else None
    from formers.core.errors import FormersError

    return str(error) if isinstance(error, FormersError) else None
