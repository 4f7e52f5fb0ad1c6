"""Batches made ahead of the step that needs them, in a thread, while the device computes.

A batch is a function of (seed, step), so it does not matter when it is made: a run with a thread has the same batches as one without, and
a resumed run begins at its step. On the host there is no thread: it would take time from the computation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from typing_extensions import Self

AHEAD = 2
"""Number of batches that are made ahead."""
Made = TypeVar("Made")


class Prefetch(Generic[Made]):
    """Context in which `take(step)` returns make(step), which a thread has computed ahead for the next steps.

    An exception of make(step) is raised by take(step). At the end of the context the thread has ended.
    """

    def __init__(self, make: Callable[[int], Made], stop: int | None = None, ahead: int = AHEAD) -> None:
        """stop: no step from this one on is made ahead."""
        self.make, self.stop, self.ahead = make, stop, ahead
        self.pending: dict[int, Future[Made]] = {}
        self.thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.thread is not None
        self.thread.shutdown(cancel_futures=True)
        self.thread = None
        self.pending.clear()

    def take(self, step: int) -> Made:
        """make(step); the thread goes on with the steps after it."""
        assert self.thread is not None
        last = step + self.ahead if self.stop is None else min(step + self.ahead, self.stop - 1)
        wanted = range(step, max(last, step) + 1)
        for old in [s for s in self.pending if s not in wanted]:
            self.pending.pop(old).cancel()
        for s in wanted:
            if s not in self.pending:
                self.pending[s] = self.thread.submit(self.make, s)
        return self.pending.pop(step).result()
