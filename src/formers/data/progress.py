"""Progress of a long job on stderr: a bar on a terminal; elsewhere one line once it takes long, and one when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from typing_extensions import Self

BAR_AFTER, LINE_AFTER = 0.5, 3.0
"""Seconds before a job shows a bar or a line."""
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silently() -> Iterator[None]:
    """Context without progress output: no bar, no line, no notice, here and in training."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def silent() -> bool:
    """Whether only results and errors are shown: inside `silently`, and with -q on the command line."""
    return _silent.get()


class Progress:
    """The progress of a job of `total` bytes (0: unknown)."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.start = time.perf_counter()
        self.shown: _Bar | _Lines | None = None

    def __enter__(self) -> Self:
        return self

    def advance(self, size: int) -> None:
        """Adds to the number of finished bytes."""
        self.done += size
        seconds = time.perf_counter() - self.start
        if self.shown is None and seconds >= (BAR_AFTER if sys.stderr.isatty() else LINE_AFTER):
            self.shown = _Bar(self.what, self.total) if sys.stderr.isatty() else _Lines(self.what)
        if self.shown is not None:
            self.shown.update(self.done)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown is not None:
            self.shown.finish(time.perf_counter() - self.start if error is None else None)


class _Bar:
    """A bar that is removed when the job is done."""

    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True, quiet=silent()), transient=True)
        self.task = self.bar.add_task(what, total=total or None)
        self.bar.start()

    def update(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def finish(self, seconds: float | None) -> None:
        self.bar.stop()


class _Lines:
    """One line at the start and one at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._say(f"{what} ...")

    def update(self, done: int) -> None:
        pass

    def finish(self, seconds: float | None) -> None:
        if seconds is not None:
            self._say(f"{self.what}: done in {seconds:,.0f} s")

    def _say(self, line: str) -> None:
        if not silent():
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
