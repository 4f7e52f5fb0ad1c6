"""The sinusoid as a figure: what `formers show positions` draws."""

from __future__ import annotations

from pathlib import Path

from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject, wide_figure
from formers.inspect.draw.positions import paint_positions
from formers.inspect.measure.positions import sinusoid_table


class Sinusoid(Figure):
    """PE(i, j) of positions i and dimensions j."""

    length: int = 64
    dim: int = 64

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        table = sinusoid_table(self.length, self.dim)
        figure = wide_figure(path, 4.2)
        paint_positions(figure, table)
        return DrawnFigure(figure, table.caption, {"values": table.values.tolist()})
