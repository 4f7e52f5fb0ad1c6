"""-v and -q: the verbosity of standard error, on every verb and anywhere in the line.

The library logs and never prints; here its log is shown, one line per record: `formers: warning: ...`. Results go to standard output
at any verbosity.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Without -v, with it, with -vv."""


class Verbosity:
    """The verbosity that the command line has set so far."""

    def __init__(self) -> None:
        self.verbose = 0
        self.quiet = False

    @property
    def level(self) -> int:
        """The lowest log level shown. Only the first of several processes logs."""
        if self.quiet or os.environ.get("RANK", "0") != "0":
            return logging.ERROR
        return LEVELS[min(self.verbose, len(LEVELS) - 1)]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the library's log is shown at this verbosity; with -q no bar, no notice and no warning."""
        library, handler = logging.getLogger("formers"), _Lines(self.level)
        before = library.level
        library.addHandler(handler)
        library.setLevel(self.level)
        try:
            with ExitStack() as stack:
                if self.quiet:
                    from formers.data.progress import silently

                    stack.enter_context(silently())
                    stack.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("ignore")
                yield
        finally:
            library.setLevel(before)
            library.removeHandler(handler)


class Verbs(TyperGroup):
    """The tree of commands. Each verb and each group takes -v and -q."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.verbosity = Verbosity()
        options = _options(self.verbosity)
        for command in _tree(self):
            command.params.extend(options)
            if not hasattr(command, "commands") and command.callback is not None:
                command.callback = _around(self.verbosity, command.callback)


class _Lines(logging.Handler):
    """Writes a line on standard error for each record. A visible progress bar replaces sys.stderr and stays below."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"formers: {record.levelname.lower()}: {self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _options(verbosity: Verbosity) -> list[Any]:
    """-v and -q as typer options; their values go to `verbosity`."""

    def louder(times: int) -> None:
        verbosity.verbose += times

    def quieter(wanted: bool) -> None:
        verbosity.quiet |= wanted

    def verb(
        verbose: int = typer.Option(
            0, "--verbose", "-v", count=True, callback=louder, expose_value=False, show_default=False, metavar="",
            help="Show the log, and where an error came from; -vv shows more.",
        ),
        quiet: bool = typer.Option(
            False, "--quiet", "-q", callback=quieter, expose_value=False, help="Show no progress, no notices and no warnings."
        ),
    ) -> None:  # fmt: skip
        pass

    maker = typer.Typer(add_completion=False)
    maker.command()(verb)
    return list(typer.main.get_command(maker).params)


def _tree(command: Any) -> Iterator[Any]:
    """A command, and all commands within it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _tree(inner)


def _around(verbosity: Verbosity, act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    def verb(*values: Any, **options: Any) -> Any:
        with verbosity.applied():
            return act(*values, **options)

    return verb
