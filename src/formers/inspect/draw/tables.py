"""Tables for rich to print."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from formers.inspect.draw.terminal import sayable


def new_table(*titles: str, right: int = 0) -> Table:
    """A table without a frame; the first column is text, and the next `right` columns are numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(title, overflow="fold", justify="right" if 1 <= number <= right else "left")
    return table


def add_row(table: Table, *cells: str | Text, style: str = "") -> None:
    """Adds a row of plain text: brackets in it are not rich's markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)


def bar(share: float, width: int, encoding: str) -> str:
    """A bar whose length is a share of `width` characters."""
    return sayable("█" * round(width * share), encoding)
