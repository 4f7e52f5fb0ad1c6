"""The progress of a bench: a bar with the time left on a terminal; no output elsewhere.

The bar is drawn between two runs and never beside one: a thread that draws would be in the CPU time of what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from formers.data.progress import silent

Advance = Callable[[float], None]
"""Called with the additional amount done."""


@contextmanager
def working(what: str, total: float, console: Console | None = None) -> Iterator[Advance]:
    """A bar on a terminal's standard error for `total` units of work, removed at the end."""
    console = console or Console(stderr=True)
    if silent() or not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False, speed_estimate_period=300.0) as bar:
        task = bar.add_task(what, total=total)
        bar.refresh()
        yield lambda done: bar.update(task, advance=done, refresh=True)
