"""The additional peak memory of a run: the resident memory of a separate process.

A process's own mark says how much it ever held. On Linux it is VmHWM, which belongs to the program and can be set back to what is held
now. `getrusage` knows another one, which a new process inherits from the one that started it, so that it is used only where there is
no VmHWM: on macOS, where it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from formers.core import FormersError
from formers.core.allocator import release_memory

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Held(NamedTuple):
    """Bytes that a process held before a run, and at its peak."""

    before: int
    peak: int


def extra_memory(make: Callable[..., Callable[[], object]], *arguments: object) -> int | None:
    """Bytes that the run which `make(*arguments)` gives takes at its peak; None if the system does not report it.

    `make` is called in a fresh process, and what it allocates is not counted: the place to make inputs, and to warm up. It is found
    there by its name, as are functions among the arguments.
    """
    held = held_memory(make, *arguments)
    return None if held is None else held.peak - held.before


def held_memory(make: Callable[..., Callable[[], object]], *arguments: object) -> Held | None:
    """What the process held in which the run that `make(*arguments)` gives was alone; None if the system does not report it."""
    if peak() is None:
        return None
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(_measured, make, *arguments).result()
        except BrokenProcessPool:
            raise FormersError("the measured process was killed: the machine has too little memory; use smaller sizes.") from None


def peak() -> int | None:
    """The most bytes that this process has held so far, or since `reset`; None if the system does not report it."""
    if STATUS.exists():
        found = [line.split() for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        if found:
            return int(found[0][1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset() -> None:
    """Resets the peak to the current memory, if the system supports it; freed memory is released first."""
    release_memory()
    try:
        RESET.write_text("5")
    except OSError:
        return


def _measured(make: Callable[..., Callable[[], object]], *arguments: object) -> Held:
    """What `held_memory` says, in the process that it starts."""
    run = make(*arguments)
    reset()
    before = peak()
    run()
    after = peak()
    assert before is not None
    assert after is not None
    return Held(before, after)
