"""Paths that users give."""

from __future__ import annotations

import os
from pathlib import Path

from formers.core.errors import FormersError


def given_path(name: str, value: object, wanted: str) -> Path:
    """The path that a value is; one that is none, or empty, is refused in a sentence with its name and what is wanted.

    An empty one is refused because it would mean the current folder without naming it.
    """
    if isinstance(value, str | os.PathLike):
        if str(value).strip():
            return Path(value)
        raise FormersError(f"{name} is empty: give {wanted}.")
    what = f"{name}={value!r}" if value is None or isinstance(value, int | float) else f"{name}, a {type(value).__name__},"
    raise FormersError(f"{what} is no path: give {wanted}.")
