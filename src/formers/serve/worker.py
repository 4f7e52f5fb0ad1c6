"""One thread that computes: a bounded queue of jobs, of which a few are worked on in turn, a step each.

A job is an iterator whose steps take a moment, such as one token. What it yields reaches the request that waits for it. A job whose
client has left, or whose time is over, is closed at its next step. So a short request is not stuck behind a long one, nothing is
computed for nobody, and what does not fit into the queue is refused at once (429).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from formers.core.content import fixed_weights
from formers.serve.errors import ApiError
from formers.serve.limits import Limits

log = logging.getLogger(__name__)
TICK = 0.25
"""Seconds between two looks at whether a client is still there."""
END = object()


class Job:
    """Steps to compute for one request; made in the event loop, run by the worker."""

    def __init__(self, steps: Iterator[Any], seconds: float) -> None:
        self.steps, self.deadline = steps, time.monotonic() + seconds
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self._loop, self._made = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def cancel(self) -> None:
        """Ends the job at its next step."""
        self.cancelled.set()

    def put(self, item: Any) -> None:
        """Hands something over to the request; called by the worker."""
        try:
            self._loop.call_soon_threadsafe(self._made.put_nowait, item)
        except RuntimeError:  # the loop has ended: nobody waits
            self.cancel()

    async def items(self) -> AsyncIterator[Any]:
        """What the steps yield; None now and then while nothing comes, so that the caller can look whether its client is still there."""
        while True:
            try:
                item = await asyncio.wait_for(self._made.get(), TICK)
            except asyncio.TimeoutError:
                yield None
                continue
            if item is END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    async def all(self, left: Callable[[], Awaitable[bool]]) -> list[Any]:
        """Everything that the steps yield; `left` says whether the client has gone."""
        found = []
        try:
            async for item in self.items():
                if item is not None:
                    found.append(item)
                elif await left():
                    raise ApiError(499, "the client has left.", code="client_closed_request")
            return found
        finally:
            self.cancel()


class Worker:
    """The thread, and the queue before it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting: deque[Job] = deque()
        self._active: deque[Job] = deque()
        self._change = threading.Condition()
        self._closed = False
        self.seconds_a_job = 1.0
        """How long a job has taken lately, by which clients are told when to come again."""
        self._thread = threading.Thread(target=self._run, name="formers-serve-worker", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> dict[str, int]:
        """How many jobs are worked on, and how many wait."""
        with self._change:
            return {"active": len(self._active), "waiting": len(self._waiting)}

    def submit(self, steps: Iterator[Any]) -> Job:
        """A job that runs as soon as others leave room; refused where too many wait."""
        with self._change:
            if self._closed:
                raise ApiError(503, "the server is closing: ask it again when it is back.", "server_error", headers={"retry-after": "5"})
            there = len(self._waiting) + len(self._active)
            if there >= self.limits.queue + self.limits.active:  # who waits is only moved up between two steps
                wait = max(1, min(60, round(self.seconds_a_job * there / self.limits.active)))
                raise ApiError(
                    429, f"{there - self.limits.active} requests wait already, as many as the queue holds: try again in {wait} seconds.",
                    "rate_limit_error", code="queue_full", headers={"retry-after": str(wait)},
                )  # fmt: skip
            job = Job(steps, self.limits.seconds)
            self._waiting.append(job)
            self._change.notify()
        return job

    def close(self) -> None:
        """Takes no more jobs, and cancels those that are there."""
        with self._change:
            self._closed = True
            for job in (*self._waiting, *self._active):
                job.cancel()
            self._change.notify()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        # The weights of a served model never change: a changed run is loaded as another model.
        with fixed_weights():
            while True:
                with self._change:
                    while not (self._waiting or self._active or self._closed):
                        self._change.wait()
                    while self._waiting and len(self._active) < self.limits.active:
                        self._active.append(self._waiting.popleft())
                    if not self._active:
                        return
                    job = self._active[0]
                goes_on = self._step(job)
                with self._change:
                    self._active.rotate(-1)
                    if not goes_on:
                        self._active.remove(job)

    def _step(self, job: Job) -> bool:
        """One step of a job; whether it goes on."""
        item: Any = END
        try:
            if time.monotonic() > job.deadline:
                raise ApiError(
                    503, f"the answer took more than {self.limits.seconds:g} seconds: ask for fewer tokens.", "server_error", code="timeout"
                )
            if not job.cancelled.is_set():
                item = next(job.steps, END)
                if item is not END:
                    job.put(item)
                    return True
        except Exception as error:
            if not isinstance(error, ApiError | ValueError):
                log.exception("a request failed")
            item = error
        job.steps.close()  # type: ignore[attr-defined]
        job.put(item)
        job.ended.set()
        took = self.limits.seconds - (job.deadline - time.monotonic())
        self.seconds_a_job = 0.8 * self.seconds_a_job + 0.2 * took
        return False
