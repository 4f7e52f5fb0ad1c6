"""Boxes, signs and arrows on axes whose unit is an inch."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from formers.inspect.draw.figure import TEXT
from formers.inspect.draw.figures.base import WIDTH, wide_figure

ATTENTION, TRANSITION, NORM, GATE, EMBEDDING, PLAIN = "#fbdfb1", "#cfe3f5", "#f4f0c4", "#e6d3ea", "#f7d6cc", "#eef1f5"
"""Fills of boxes, which differ in brightness, too; what a box is stands in it."""
EDGE = "#7d8792"
SIZE = 9.0
"""Points of letters."""


def new_diagram(path: Path, height: float, lines: int) -> tuple[Any, Any]:
    """A figure for a caption of so many lines, and axes without a frame, as wide as all of them and `height` inches high."""
    figure = wide_figure(path, 0.95 * height + 0.2 + 0.17 * lines)
    axes = figure.subplots()
    axes.set(xlim=(0, WIDTH), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return figure, axes


def fit(text: str, width: float, size: float = SIZE) -> str:
    """The lines of a text in a box of so many inches."""
    characters = max(int(width / (0.0083 * size)), 4)
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, characters, break_long_words=False) or [""])


def box(
    axes: Any, x: float, y: float, width: float, height: float, text: str, fill: str = PLAIN, size: float = SIZE, edge: str = EDGE
) -> None:
    """A box with its middle at (x, y) and a text in it."""
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.05", facecolor=fill, edgecolor=edge,
        linewidth=0.9, zorder=3,
    )  # fmt: skip
    axes.add_patch(shape)
    if text:
        label(axes, x, y, text, size)


def label(axes: Any, x: float, y: float, text: str, size: float = SIZE, colour: str = TEXT, **look: Any) -> None:
    """A text with its middle at (x, y), unless `ha` and `va` say otherwise."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": size, "color": colour, "zorder": 4, "linespacing": 1.15} | look)


def arrow(axes: Any, *points: tuple[float, float], colour: str = TEXT, head: bool = True, dashed: bool = False, width: float = 1.0) -> None:
    """A line through points, with a head at the last."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    axes.add_patch(
        FancyArrowPatch(
            path=Line(points), arrowstyle="-|>" if head else "-", mutation_scale=7, color=colour, linewidth=width, zorder=2,
            linestyle="dashed" if dashed else "solid", shrinkA=0, shrinkB=0, joinstyle="miter", capstyle="butt",
        )
    )  # fmt: skip


def sign(axes: Any, x: float, y: float, text: str = "+", radius: float = 0.1) -> None:
    """A circle with a sign in it."""
    from matplotlib.patches import Circle

    axes.add_patch(Circle((x, y), radius, facecolor="white", edgecolor=TEXT, linewidth=1.0, zorder=3))
    label(axes, x, y - 0.005, text, 10)
