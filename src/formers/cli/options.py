"""Options typed as `--set name=value`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

ELSEWHERE = ("data", "env", "out", "member", "from", "from_run", "quiet", "device", "preset", "track", "steps", "minutes", "seed")
"""What has an option of its own, and is not taken by --set."""


def parse_set(pairs: list[str]) -> dict[str, Any]:
    """The options of `name=value` pairs: a value that is JSON is read as JSON, any other is a string; the last of a name counts."""
    options = {}
    for pair in pairs:
        name, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not name:
            from formers.core import FormersError

            raise FormersError(f"{pair!r} sets nothing: write it as name=value, e.g. --set layers=8.")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is Python's, not JSON")
