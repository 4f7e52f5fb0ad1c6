"""Heat maps of positional encodings: one row for each position, one column for each dimension."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.style import Style
from rich.text import Text
from torch import Tensor

from formers.inspect.draw.figure import TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.terminal import has_unicode, lines_of, margin, ruler, sayable
from formers.inspect.measure.positions import PositionTable

COLOURS = ((-1.0, (33, 102, 172)), (0.0, (247, 247, 247)), (1.0, (178, 24, 43)))
"""From -1 over 0 to 1: blue, white, red, as (value, (red, green, blue))."""
SHADES, LETTERS = " ░▒▓█", " .:-=+*#%@"


def draw_positions(table: PositionTable, columns: int = 80, encoding: str = "utf-8", colour: bool = True) -> Text:
    """Positions as text for rich to print: two a line in colour, or one a line in shades; dimensions that do not fit are skipped."""
    length, dim = table.values.shape
    left = margin("", length)
    room = max(columns - len(left), 8)
    each = -(-dim // room)
    each += 1 - each % 2  # an odd step shows sines and cosines in turn, an even one only sines
    shown = table.values[:, ::each] / table.largest
    colour = colour and has_unicode(encoding)
    drawing = Text(sayable(" position ↓  dimension →\n", encoding))
    drawing.append(left + ruler(shown.shape[1], 1, each) + "\n")
    drawing.append(_colours(shown) if colour else _shades(shown, has_unicode(encoding)))
    marks = "Blue is {}, white 0, red {}." if colour else "Blank is {}, the darkest mark {}."
    words = [table.caption, marks.format(f"{-table.largest:.3g}", f"{table.largest:.3g}")]
    if each > 1:
        words.append(f"One dimension in {each} is shown.")
    drawing.append(sayable("\n" + "\n".join(lines_of(" ".join(words), columns)), encoding))
    return drawing


def save_positions(table: PositionTable, path: str | Path) -> Path:
    """Writes positions as a picture, .png or .svg, and returns its path."""
    figure = new_figure(path, 5.6, 4.4)
    paint_positions(figure, table)
    write_caption(figure, table.caption)
    return save_figure(figure, path)


def paint_positions(figure: Any, table: PositionTable) -> None:
    """The values as a heat map that fills a figure, with a scale of its colours."""
    length, dim = table.values.shape
    axes = figure.subplots()
    image = axes.imshow(
        table.values.numpy(), cmap="RdBu_r", vmin=-table.largest, vmax=table.largest, interpolation="none", aspect="auto",
        extent=(-0.5, dim - 0.5, length - 0.5, -0.5),
    )  # fmt: skip
    axes.set_xlabel("dimension", fontsize=8, color=TEXT)
    axes.set_ylabel("position", fontsize=8, color=TEXT)
    axes.locator_params(integer=True)
    tidy(axes)
    bar = figure.colorbar(image, ax=axes, ticks=[-table.largest, 0, table.largest], fraction=0.04, pad=0.02)
    tidy(bar.ax)
    bar.outline.set_visible(False)


def _colours(table: Tensor) -> Text:
    """Two positions a line: the upper half of a cell has the colour of the first, the lower that of the second."""
    rows = table.tolist()
    length = len(rows)
    drawing = Text()
    for top in range(0, length, 2):
        drawing.append(margin(str(top) if top % 8 == 0 else "", length))
        for column, value in enumerate(rows[top]):
            below = _colour(rows[top + 1][column]) if top + 1 < length else None
            drawing.append("▀", Style(color=_colour(value), bgcolor=below))
        drawing.append("\n")
    return drawing


def _colour(value: float) -> Color:
    """The colour of a value in -1 ... 1, between its two neighbours in COLOURS."""
    (low, first), (high, second) = next(pair for pair in pairwise(COLOURS) if value <= pair[1][0])
    share = (value - low) / (high - low)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(first, second, strict=True))
    return Color.from_rgb(red, green, blue)


def _shades(table: Tensor, unicode: bool) -> str:
    """One position a line: -1 is blank and 1 the darkest mark."""
    marks = SHADES if unicode else LETTERS
    level = ((table + 1) / 2 * len(marks)).long().clamp(0, len(marks) - 1).tolist()
    length = len(level)
    rows = ["".join(marks[v] for v in row).rstrip() for row in level]
    return "".join(margin(str(i) if i % 4 == 0 else "", length) + row + "\n" for i, row in enumerate(rows))
