"""Options in words: name=value, where a value that is JSON is read as JSON."""

from __future__ import annotations

import json
from typing import Any

from formers.core import FormersError


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """The options of name=value pairs."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not name:
            raise FormersError(f"{pair!r} sets nothing: write it as name=value, e.g. gate=sum.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
