"""Validation of paths given by users."""

from __future__ import annotations

import os
from pathlib import Path

from formers.core.errors import FormersError


def given_path(name: str, value: object, wanted: str) -> Path:
    """Converts a value to a path; raises FormersError with the argument's name and the expected value if it is not a path or is empty.

    An empty path is an error because it would silently mean the current folder.
    """
    if isinstance(value, str | os.PathLike):
        if str(value).strip():
            return Path(value)
        raise FormersError(f"{name} is empty: give {wanted}.")
    what = f"{name}={value!r}" if value is None or isinstance(value, int | float) else f"{name}, a {type(value).__name__},"
    raise FormersError(f"{what} is not a path: give {wanted}.")
