"""The error class for user mistakes: its message is one sentence with the value, the rule and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FormersError(ValueError):
    """A mistake that the user can fix; the message is one sentence that contains the fix. The command line exits with code 2."""


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known name, or the list of all known names if none is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name).lower().replace("_", "-"), [n.lower().replace("_", "-") for n in names], n=1)
    if close:
        index = [n.lower().replace("_", "-") for n in names].index(close[0])
        return f"did you mean {names[index]!r}?"
    return f"choose one of {', '.join(names)}." if names else "it takes none."
