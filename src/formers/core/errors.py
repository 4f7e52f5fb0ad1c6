"""The one error users meet: a sentence that names the value, the rule and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FormersError(ValueError):
    """A mistake that its user can mend; the message is one sentence with the fix. Exit code 2 on the command line."""


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a name that is not among the known ones: the nearest of them, or the whole list if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name).lower().replace("_", "-"), [n.lower().replace("_", "-") for n in names], n=1)
    if close:
        index = [n.lower().replace("_", "-") for n in names].index(close[0])
        return f"did you mean {names[index]!r}?"
    return f"choose one of {', '.join(names)}." if names else "it takes none."
