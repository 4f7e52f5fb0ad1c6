"""Memory that was freed and that the system does not have back."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache


def give_back() -> None:
    """Gives freed memory back to the system, where the C library keeps it to itself: glibc does, below anything that lives on."""
    _trim()(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], object]:
    """glibc's malloc_trim, or on other systems nothing."""
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else abs
    except (OSError, AttributeError):  # another C library
        return abs
