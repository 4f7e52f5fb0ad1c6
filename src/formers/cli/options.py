"""Options typed as `--set name=value`, `--pixel ROW,COLUMN` and `--size HEIGHTxWIDTH`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

ELSEWHERE = ("data", "env", "out", "member", "from", "from_run", "quiet", "device", "preset", "track", "steps", "minutes", "seed")
"""Names with their own command-line option, which --set does not take."""


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


def parse_pixel(text: str) -> tuple[int, int]:
    """Row and column of "10,12", counted from 0."""
    row, comma, column = (piece.strip() for piece in text.partition(","))
    if not comma or not row.isdecimal() or not column.isdecimal():
        from formers.core import FormersError

        raise FormersError(f"{text!r} is no pixel: write it as ROW,COLUMN, counted from 0, e.g. --pixel 10,12.")
    return int(row), int(column)


def parse_size(text: str) -> tuple[int, int, int]:
    """Height, width and channels of "16x16x3", or of "16x16", which has one channel."""
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) not in (2, 3) or not all(side.isdecimal() and int(side) > 0 for side in sides):
        from formers.core import FormersError

        raise FormersError(f"{text!r} is no size of an image: write it as HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS, e.g. --size 16x16x3.")
    height, width, *channels = map(int, sides)
    return height, width, channels[0] if channels else 1


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is Python's, not JSON")
