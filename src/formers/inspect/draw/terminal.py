"""What a terminal can show: the marks its encoding has, and the rulers beside a grid of cells."""

from __future__ import annotations

import codecs
import textwrap

TIMES = "\N{MULTIPLICATION SIGN}"
PLAIN = str.maketrans(
    {
        "│": "|", "─": "-", "├": "+", "┤": "+", "┼": "+", "┬": "+", "┴": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▼": "v",
        "█": "#", "▓": "*", "▒": "+", "░": "-", "■": "#", "·": ".", "→": "->", "←": "<-", "↓": "v", "…": "...", TIMES: "x",
    }
)  # fmt: skip
"""What stands for a mark where only ASCII can be shown."""


def has_unicode(encoding: str) -> bool:
    """Whether an output of this encoding shows every mark."""
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False


def sayable(text: str, encoding: str) -> str:
    """The text with its marks replaced by ASCII, and what has no replacement by "?", unless the encoding shows them all."""
    return text if has_unicode(encoding) else text.translate(PLAIN).encode("ascii", "replace").decode()


def ruler(cells: int, width: int = 1, each: int = 1) -> str:
    """The numbers above a row of cells, each `width` characters wide and standing for `each` positions; as many as fit."""
    gap = len(str((cells - 1) * each)) + 2
    every = 1
    while every * width < gap:
        every *= 2
    line = ""
    for cell in range(0, cells, every):
        line = line.ljust(cell * width) + str(cell * each)
    return line


def margin(label: str, size: int) -> str:
    """A label to the left of a row, as wide as the largest number below `size`, with a space on either side."""
    return f" {label:>{len(str(size - 1))}} "


def lines_of(text: str, columns: int) -> list[str]:
    """A text in lines of at most `columns` characters, a space before each."""
    return textwrap.wrap(text, max(columns, 20), initial_indent=" ", subsequent_indent=" ")
