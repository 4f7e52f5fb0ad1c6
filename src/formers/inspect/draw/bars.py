"""Bar charts: a bar for each mean, with a dot for each value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from formers.inspect.draw.figure import FAINT, INK, TEXT, new_figure, save_figure, tidy, write_caption

DOTS = "#c4572b"


class Bar(NamedTuple):
    """A name and its values, perhaps none; a note is written after the bar."""

    name: str
    values: list[float]
    note: str = ""


class Bars(NamedTuple):
    """Some bars over one axis; the first is what the others are measured against."""

    bars: list[Bar]
    across: str


def save_bars(panels: Sequence[Bars], path: str | Path, caption: str) -> Path:
    """Writes panels of bars side by side as a picture, .png or .svg, and returns its path."""
    count = max(len(panel.bars) for panel in panels)
    figure = new_figure(path, 5.4 * len(panels) + 1.0, 0.34 * count + 1.5)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row, bar in enumerate(panel.bars):
            length = fmean(bar.values) if bar.values else 0.0
            axes.barh(row, length, height=0.62, color="#888888" if row == 0 else INK, zorder=2)
            axes.plot(bar.values, [row] * len(bar.values), "o", color=DOTS, markersize=3.5, zorder=3)
            end = max([*bar.values, length])
            words = " ".join(word for word in (f"{length:.3g}" if bar.values else "", bar.note and f"({bar.note})") if word)
            axes.annotate(words, (end, row), (5, 0), textcoords="offset points", va="center", fontsize=8, color=TEXT)
        if panel.bars and panel.bars[0].values:
            axes.axvline(fmean(panel.bars[0].values), color="#888888", linestyle="dashed", linewidth=1.0, zorder=1)
        axes.set_yticks(range(len(panel.bars)), [bar.name for bar in panel.bars])
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlim(left=0.0)
        axes.grid(axis="x", color=FAINT, linewidth=1.0, zorder=0)
        tidy(axes)
        axes.set_xlabel(panel.across, fontsize=8, color=TEXT)
    write_caption(figure, caption)
    return save_figure(figure, path)
