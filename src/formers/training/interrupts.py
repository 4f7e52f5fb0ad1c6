"""Ctrl-C, SIGTERM, a closed terminal: after the first signal the step finishes and the run is saved; a second one ends it at once.

The handler only records the signal: saving or printing inside a handler is not reentrant.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def terminable() -> Iterator[None]:
    """Context in which SIGTERM raises an exception, so that partial files are cleaned up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupts:
    """Context in which a first signal is recorded in `signal`, and a second one ends the process with code 128 + its number."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # signals can only be handled in the main thread
            self.before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), SHOW_CURSOR + b"\n")  # the progress bar hides the cursor
            os._exit(128 + number)
        self.signal = number

    @property
    def caught(self) -> bool:
        """Whether a signal was received."""
        return self.signal is not None

    def leave(self) -> None:
        """Ends the process as the signal requires: as Ctrl-C does, or with exit code 128 + its number."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or signal.SIGTERM))
