"""Returning freed heap memory to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache


def release_memory() -> None:
    """Returns freed heap memory to the operating system. glibc keeps freed memory that lies below a live allocation until malloc_trim."""
    _trim()(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], object]:
    """glibc's malloc_trim; on other systems a function without effect."""
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else abs
    except (OSError, AttributeError):  # another C library
        return abs
