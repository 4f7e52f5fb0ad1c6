"""The log of a run: a progress bar on a terminal, plain lines elsewhere, and every metric as a line of JSON in metrics.jsonl.

The same metrics go to the chosen sinks (sinks.py). A sink that fails is reported once and dropped: it does not stop the training.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import Self

from formers.core import FormersError
from formers.data.progress import silent
from formers.training.sinks import Sink
from formers.training.sinks import sinks as open_sinks

METRICS = "metrics.jsonl"
REFRESHES = 4
"""Refresh rate of the bar per second, in a separate thread."""
LINE_EVERY = 10.0
"""Seconds between two plain lines."""
UNPRINTABLE = {i: "\ufffd" for i in (*range(32), *range(127, 160)) if chr(i) not in "\t\n"}
"""Control codes, which a byte model may generate and a terminal would execute."""
TAIL = 1 << 16
"""The last complete line of the metrics is searched in this many bytes."""

Tick = Callable[[int, "int | None"], None]
"""Called with the amount done, and the total if it is known."""


class _Screen(Console):
    """A console that ignores a closed pipe: output must not stop a training."""

    def on_broken_pipe(self) -> None:
        """Stops writing."""
        self.quiet = True


class Log:
    """Shows progress from 0 to 1 with the newest metrics, and appends them to metrics.jsonl.

    keep: number of bytes of the existing metrics that a resumed run keeps; None starts a new file.
    sinks: auto, none, or comma-separated names; facts: the description of the run for them.
    """

    def __init__(
        self,
        folder: Path | None,
        console: Console | None = None,
        quiet: bool = False,
        sinks: str = "none",
        keep: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.console = console or _Screen(stderr=True, quiet=quiet or silent())
        self.folder = folder
        self.file: int | None = None
        self.sinks: list[Sink] = []
        self.written: dict[str, float] = {}
        """The time of the last write of step metrics to each sink."""
        self.began: tuple[float, float] | None = None
        """The time and the progress of the first step of this session."""
        self.shown = -math.inf
        self.bar = _progress(self.console, transient=False) if self.console.is_terminal and not self.console.quiet else None
        self.task = None if self.bar is None else self.bar.add_task("training", total=1.0, figures="")
        if folder is not None:
            self._open(folder, sinks, keep, facts or {})

    def _open(self, folder: Path, sinks: str, keep: int | None, facts: Mapping[str, Any]) -> None:
        path = folder / METRICS
        end, after = 0, None
        with _disk_errors(folder):
            if keep is not None:
                there = path.stat().st_size if path.exists() else 0
                if there < keep:
                    self.say(f"{path} has {there:,} of the {keep:,} bytes that the checkpoint recorded: the existing lines are kept")
                end, after = _last(path, min(keep, there))
        self.sinks, failed = open_sinks(folder, sinks, facts, after)  # may raise: before the file is cut
        for line in failed:
            self.say(line)
        with _disk_errors(folder):
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self.file, end)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
        for sink in [*self.sinks]:
            self._try(sink, sink.close)
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def step(self, step: int, progress: float, figures: Mapping[str, float]) -> None:
        """Shows the metrics of a training step."""
        now = time.perf_counter()
        if self.began is None:
            self.began = now, progress
            self.shown = -math.inf if self.bar is not None else now
        if self.bar is not None and self.task is not None:
            if now - self.shown >= 0.5 / REFRESHES or progress >= 1.0:
                self.shown = now
                self.bar.update(
                    self.task,
                    completed=progress,
                    description=f"step {step:,}",
                    figures=f"{_words(figures)}  left {self._left(now, progress)}",
                )
        elif now - self.shown >= LINE_EVERY:
            self.shown = now
            self.say(f"step {step:,}  {progress:4.0%}  {_words(figures)}  left {self._left(now, progress)}")

    def record(self, often: bool = False, **figures: float | int | str | None) -> None:
        """Appends a line of JSON to the run's metrics; metrics logged `often`, at every step, are sent to the sinks less frequently."""
        if self.file is None or self.folder is None:
            return
        try:
            line = json.dumps(figures, allow_nan=False)
        except ValueError:
            line = json.dumps(finite(figures))
        data = line.encode() + b"\n"
        with _disk_errors(self.folder):
            if os.write(self.file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a partial write means that the disk is full
        if self.sinks:
            self._send(often, figures)

    def size(self) -> int:
        """The size of the metrics in bytes, after syncing them to disk."""
        if self.file is None or self.folder is None:
            return 0
        with _disk_errors(self.folder):
            os.fsync(self.file)
            return os.fstat(self.file).st_size

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self.console.print(line.translate(UNPRINTABLE), highlight=False, markup=False, soft_wrap=True)

    def part(self, description: str) -> AbstractContextManager[Tick]:
        """A second bar below the training bar, while the body runs: `with log.part("evaluating") as tick: tick(3, 10)`."""
        return _ticking(self.bar, description)

    def _left(self, now: float, progress: float) -> str:
        """The time left at the mean speed of this session: a budget in minutes or steps is spent evenly."""
        start, done = self.began or (now, progress)
        if progress <= done:
            return "-:--"
        left = round((now - start) * (1 - progress) / (progress - done))
        hours = f"{left // 3600}:{left // 60 % 60:02d}" if left >= 3600 else str(left // 60)
        return f"{hours}:{left % 60:02d}"

    def _send(self, often: bool, figures: Mapping[str, float | int | str | None]) -> None:
        now = time.perf_counter()
        due = [s for s in self.sinks if not often or now - self.written.get(s.name, -math.inf) >= s.every]
        numbers = {name: float(value) for name, value in figures.items() if name != "step" and isinstance(value, int | float)}
        for sink in due if numbers else ():
            if often:
                self.written[sink.name] = now
            self._try(sink, partial(sink.write, int(figures.get("step") or 0), numbers))

    def _try(self, sink: Sink, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self.sinks.remove(sink)
            self.say(f"{sink.name} failed ({error}): it gets no more metrics, the training continues")


@contextmanager
def progress_bar(description: str, console: Console | None = None) -> Iterator[Tick]:
    """A bar on a terminal's standard error, removed at the end; no output elsewhere: `tick(done, total)`."""
    console = console or Console(stderr=True)
    if silent() or not console.is_terminal:
        yield _nothing
        return
    with _progress(console, transient=True) as bar, _ticking(bar, description) as tick:
        yield tick


def finite(figures: Mapping[str, float | int | str | None]) -> dict[str, float | int | str | None]:
    """The metrics as JSON values: one that is not finite is null, with its text in a second key, as in loss_word = "nan"."""
    whole: dict[str, float | int | str | None] = {}
    for name, value in figures.items():
        if isinstance(value, float) and not math.isfinite(value):
            whole |= {name: None, f"{name}_word": str(value)}
        else:
            whole[name] = value
    return whole


def _progress(console: Console, transient: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=REFRESHES,
        transient=transient,
    )


@contextmanager
def _ticking(bar: Progress | None, description: str) -> Iterator[Tick]:
    """A task of a bar while the body runs."""
    if bar is None:
        yield _nothing
        return
    task = bar.add_task(description, total=None, figures="")

    def tick(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total, figures=f"{done:,}" if total is None else f"{done:,} of {total:,}")

    try:
        yield tick
    finally:
        bar.remove_task(task)


def _nothing(done: int, total: int | None) -> None:
    pass


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Context that turns a disk error into a FormersError."""
    try:
        yield
    except OSError as error:
        fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix that"
        raise FormersError(f"{METRICS} cannot be written ({error.strerror}): {fix}, then `formers resume {folder}`.") from None


def _last(path: Path, end: int) -> tuple[int, int]:
    """The end of the last complete line before byte `end`, and its step."""
    if end == 0:
        return 0, 0
    with path.open("rb") as file:
        file.seek(max(0, end - TAIL))
        tail = file.read(end - file.tell())
    torn = len(tail) - tail.rfind(b"\n") - 1
    for line in reversed(tail[: len(tail) - torn].splitlines()):
        try:
            return end - torn, int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return end - torn, 0


def _words(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:,.0f}" if value >= 1000 else f"{name} {value:.3f}" for name, value in figures.items())
