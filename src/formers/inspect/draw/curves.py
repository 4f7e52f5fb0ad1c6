"""Curves: several lines over one axis, drawn with letters in the terminal, or as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from formers.inspect.draw.figure import FAINT, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.terminal import lines_of, sayable

COLOURS = ("#23508e", "#c4572b", "#2e8b6d", "#8a4fa3", "#b8860b", "#3aa0c4", "#b03060")
ROWS = 16
"""How many lines a drawing is high."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
STROKES = ("solid", "dashed", "dotted")
"""How lines are drawn, one after the other, where there are more of them than colours."""


class Curve(NamedTuple):
    """A line: y over x, which rises."""

    name: str
    x: list[float]
    y: list[float]
    band: tuple[list[float], list[float]] | None = None
    """The lower and the upper end of an interval at each x: a shaded band of a picture, which the terminal leaves out."""


class Panel(NamedTuple):
    """Some curves with one pair of axes."""

    curves: list[Curve]
    across: str
    """What x is."""
    up: str
    """What y is."""
    level: float | None = None
    """A height that is marked."""
    scale: Literal["logarithmic", "linear"] = "logarithmic"
    """How x runs."""
    rise: Literal["logarithmic", "linear"] = "linear"
    """How y runs."""
    title: str = ""
    """What stands above, where there are several panels."""


def draw_curves(panel: Panel, columns: int = 80, encoding: str = "utf-8") -> str:
    """The curves as lines of at most `columns` characters: a letter each; where two meet the later one is seen."""
    rise, fall = (math.log, math.exp) if panel.rise == "logarithmic" else (float, float)
    known = [rise(value) for curve in panel.curves for value in curve.y if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    spread = (high - low) or 1.0
    heights = {0: high, ROWS - 1: low, (ROWS - 1) // 2: high - spread * ((ROWS - 1) // 2) / (ROWS - 1)}
    marks = {row: f"{fall(height):.3g}" for row, height in heights.items()}
    left = max(map(len, marks.values())) + 2
    width = max(columns - left - 1, 16)
    first, last = min(c.x[0] for c in panel.curves), max(c.x[-1] for c in panel.curves)
    grid = [[" "] * width for _ in range(ROWS)]
    for letter, curve in zip(LETTERS * len(panel.curves), panel.curves, strict=False):
        for column in range(width):
            x = _between(first, last, column / (width - 1), panel.scale)
            y = _at(curve, x)
            if y is not None and math.isfinite(y):
                grid[round((high - rise(y)) / spread * (ROWS - 1))][column] = letter
    lines = [f" {panel.up}"]
    lines += [f"{marks.get(row, ''):>{left - 1}} │{''.join(cells).rstrip()}" for row, cells in enumerate(grid)]
    lines.append(" " * left + "└" + "─" * (width - 1))
    lines.append(" " * left + _scale(first, last, width, panel.scale))
    lines += lines_of(f"{panel.across}, from left to right", columns)
    for letter, curve in zip(LETTERS * len(panel.curves), panel.curves, strict=False):
        lines.append(f" {letter}  {curve.name}")
    return sayable("\n".join(lines), encoding)


def save_panels(panels: Sequence[Panel], path: str | Path, caption: str, columns: int | None = None) -> Path:
    """Writes panels as a picture, .png or .svg, and returns its path; side by side, or `columns` of them in a row."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    most = max(len(panel.curves) for panel in panels)
    crowded = most > len(COLOURS)  # then names stand below, where they hide no line
    columns = columns or len(panels)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(path, 5.4 * columns + 1.0, 4.4 * rows + (0.1 * most if crowded else 0.0))
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        for i, curve in enumerate(panel.curves):
            mark: Any = "o" if len(curve.x) <= 16 else None
            colour, stroke = COLOURS[i % len(COLOURS)], STROKES[i // len(COLOURS) % len(STROKES)]
            axes.plot(
                curve.x, curve.y, color=colour, linestyle=stroke, linewidth=1.6, marker=mark, markersize=3, label=curve.name, zorder=2
            )
            if curve.band is not None:
                axes.fill_between(curve.x, *curve.band, color=colour, alpha=0.16, linewidth=0, zorder=1)
        if panel.level is not None:
            axes.axhline(panel.level, color="#888888", linestyle="dashed", linewidth=1.2, zorder=2)
        if panel.scale == "logarithmic":
            axes.set_xscale("log", base=2)
        elif all(x == round(x) for curve in panel.curves for x in curve.x):  # what is counted has nothing between two numbers
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if panel.rise == "logarithmic":
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.7g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.7g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(color=FAINT, linewidth=1.0, zorder=0)
        tidy(axes)
        axes.set_title(panel.title, fontsize=9, color=TEXT)
        axes.set_xlabel(panel.across, fontsize=8, color=TEXT)
        axes.set_ylabel(panel.up, fontsize=8, color=TEXT)
        where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.13), "ncols": 2} if crowded else {}
        for words in axes.legend(fontsize=8, frameon=False, **where).get_texts():
            words.set_parse_math(False)  # the name of a folder is no formula
    write_caption(figure, caption)
    return save_figure(figure, path)


def _at(curve: Curve, x: float) -> float | None:
    """The height of a curve at x, on straight lines between what is known; None beyond its ends."""
    if not curve.x[0] <= x <= curve.x[-1] * (1 + 1e-9):
        return None
    right = next((i for i, known in enumerate(curve.x) if known >= x), len(curve.x) - 1)
    if right == 0:
        return curve.y[0]
    share = min(1.0, (x - curve.x[right - 1]) / (curve.x[right] - curve.x[right - 1]))
    return curve.y[right - 1] + share * (curve.y[right] - curve.y[right - 1])


def _between(first: float, last: float, share: float, scale: str) -> float:
    """The x at a share of the way from the first to the last."""
    return first * (last / first) ** share if scale == "logarithmic" else first + (last - first) * share


def _scale(first: float, last: float, width: int, scale: str) -> str:
    """Numbers below the columns where they stand, as many as fit, the ends among them."""
    line = ""
    for step in range(7):
        column = round(step / 6 * (width - 1))
        text = f"{_between(first, last, step / 6, scale):.0f}"
        column = min(column, width - len(text))
        if column >= len(line) + (2 if line else 0):
            line = line.ljust(column) + text
    return line
