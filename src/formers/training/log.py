"""What a run shows: a live bar on a terminal, plain lines elsewhere, and every figure as a line of JSON in the run's folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from typing_extensions import Self

REFRESHES = 4
"""How often a second the bar is drawn, by a thread of its own."""
LINE_EVERY = 10.0
"""Seconds between two plain lines."""


class Log:
    """Shows progress from 0 to 1 with the newest figures, and appends them to metrics.jsonl."""

    def __init__(self, folder: Path | None, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(stderr=True, quiet=quiet)
        self.file = None if folder is None else (folder / "metrics.jsonl").open("w", buffering=1)
        self.start = time.perf_counter()
        self.last_line = self.start
        self.bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[figures]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                _Left(),
                console=self.console,
                refresh_per_second=REFRESHES,
            )
            if self.console.is_terminal
            else None
        )
        self.task = None if self.bar is None else self.bar.add_task("training", total=1.0, figures="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.file is not None:
            self.file.close()

    def step(self, step: int, progress: float, figures: dict[str, float]) -> None:
        """Shows the figures of a training step."""
        now = time.perf_counter()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=progress, figures=_words(figures))
        elif now - self.last_line >= LINE_EVERY:
            self.last_line = now
            left = (now - self.start) * (1 - progress) / max(progress, 1e-9)
            self.say(f"step {step:,}  {progress:4.0%}  {_words(figures)}  {left:,.0f} s left")

    def record(self, **figures: float | int | str) -> None:
        """Appends a line of JSON to the run's metrics."""
        if self.file is not None:
            self.file.write(json.dumps(figures) + "\n")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Left(ProgressColumn):
    """The time left at the mean speed so far: a budget in minutes or steps is spent evenly."""

    def render(self, task: Task) -> Text:
        """Minutes and seconds."""
        if not task.completed or task.elapsed is None:
            return Text("-:--")
        left = int(task.elapsed * (1 - task.completed) / task.completed)
        return Text(f"{left // 60}:{left % 60:02d}")


def _words(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.0f}" if value >= 1000 else f"{name} {value:.3f}" for name, value in figures.items())
