"""-v and -q: how much is said on standard error, on every verb and wherever in the line they stand.

The library logs and never prints; here its log is shown, a line each: `formers: warning: ...`. Results go to standard output and are
shown whatever was asked for.
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


class Manners:
    """What the command line has asked for so far."""

    def __init__(self) -> None:
        self.verbose = 0
        self.quiet = False

    @property
    def level(self) -> int:
        """From which level on the log is shown. Of several processes the first one speaks."""
        if self.quiet or os.environ.get("RANK", "0") != "0":
            return logging.ERROR
        return LEVELS[min(self.verbose, len(LEVELS) - 1)]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it the library's log is shown as asked for; with -q no bar, no notice and no warning is."""
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
    """The tree of commands. Each verb and each group takes -v and -q; new ones need not know of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.manners = Manners()
        options = _options(self.manners)
        for command in _tree(self):
            command.params.extend(options)
            if not hasattr(command, "commands") and command.callback is not None:
                command.callback = _around(self.manners, command.callback)


class _Lines(logging.Handler):
    """A line on standard error for each record. A bar that is being shown has put itself in the place of sys.stderr, and stays below."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"formers: {record.levelname.lower()}: {self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _options(manners: Manners) -> list[Any]:
    """-v and -q as typer makes them; what they are given goes to `manners`."""

    def louder(times: int) -> None:
        manners.verbose += times

    def quieter(wanted: bool) -> None:
        manners.quiet |= wanted

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


def _around(manners: Manners, act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    def verb(*values: Any, **options: Any) -> Any:
        with manners.kept():
            return act(*values, **options)

    return verb
