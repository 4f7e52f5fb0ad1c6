"""Tables of plain text: a title a column, and no lines between the rows."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text


def new_table(*titles: str) -> Table:
    """An empty table with these columns; words that are too long for theirs go on below."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def row(table: Table, *cells: str | Text, style: str = "") -> None:
    """Adds a row of plain text: brackets in it are not rich's markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)
