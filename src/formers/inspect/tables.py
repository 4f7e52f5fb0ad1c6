"""Tables for rich to print, and figures in readable units."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from formers.inspect.terminal import sayable


def new_table(*titles: str, right: int = 0) -> Table:
    """A table without a frame; of its columns, the `right` ones behind the first hold numbers."""
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


def in_flops(count: float) -> str:
    """A number of FLOPs in three digits: 1.90 MFLOP."""
    return _scaled(count, 1000.0, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def in_bytes(count: float) -> str:
    """A number of bytes in three digits: 12.5 MiB."""
    return _scaled(count, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _scaled(count: float, step: float, units: tuple[str, ...]) -> str:
    unit = 0
    while count >= 999.5 and unit < len(units) - 1:
        count, unit = count / step, unit + 1
    if unit == 0 and count == int(count):
        return f"{count:.0f} {units[0]}"
    return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f} {units[unit]}"
