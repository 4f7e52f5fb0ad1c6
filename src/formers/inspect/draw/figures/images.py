"""Patterns on the grid of an image as figures: 1-D and 2-D local attention (E70-E73), strided and fixed attention (E80-E83)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from formers.core import FormersError, Raster
from formers.inspect.draw.figure import FAINT, LINE, TEXT, tidy
from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject, sized, wide_figure
from formers.inspect.draw.pattern_images import COLOURS, legend_patches, paint_marks
from formers.inspect.measure.part_text import spell
from formers.inspect.measure.pattern_images import MEMORY, OWN, QUERY, checked_pixel, image_grid, own_block, pixel_marks
from formers.patterns import Fixed, Pattern, Strided

SIDE = 32
"""The most pixels of a side that can be told apart."""


class ImageLocal(Figure):
    """What a pixel sees under the Image Transformer's two patterns."""

    query_block: PositiveInt = 24
    memory_block: NonNegativeInt = 24
    """Pixels of a 1-D block, and of the memory before it."""
    query_block_2d: tuple[PositiveInt, PositiveInt] = (4, 4)
    memory_block_2d: tuple[NonNegativeInt, NonNegativeInt] = (2, 2)
    """Rows and columns of a 2-D block, and of the memory around it."""
    pixel: tuple[int, int] | None = None
    """Row and column of the query; the middle of a block unless given."""

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        if subject.run is not None:
            raise FormersError(f"{subject.run} has one layout, and two are compared: use formers show pattern for it.")
        figure = wide_figure(path, 4.0)
        values, words, shown, sides = [], [], [], ""
        top, below = figure.subfigures(2, 1, height_ratios=[1.0, 0.22])
        blocks = {"1d": (self.query_block, self.memory_block), "2d": (self.query_block_2d, self.memory_block_2d)}
        for axes, (layout, (query, memory)) in zip(top.subplots(1, 2), blocks.items(), strict=True):
            spec = subject.variant(layout=layout, query_block=query, memory_block=memory)
            pattern, grid = spec.pattern, image_grid(spec.pattern, spec.image)
            if grid is None:
                raise FormersError(f"{spec.name} reads no image: use image-transformer.")
            sized("a side of the image", max(grid.raster.height, grid.raster.width), SIDE)
            sides = f"{grid.raster.height} by {grid.raster.width}"
            pixel = checked_pixel(pattern, grid, self.pixel)
            marks = pixel_marks(pattern, grid, pixel)
            paint_marks(axes, grid, marks, own_block(pattern, grid, pixel))
            axes.set_title(f"{layout.upper().replace('D', '-D')} local", fontsize=10, color=TEXT, pad=16)
            values.append({"layout": layout, "pixel": list(pixel), "seen": marks})
            shown += marks
            words.append(f"{layout}: {spell(pattern)}")
        patches = legend_patches(shown, True)
        below.legend(handles=patches, loc="center", ncols=2, fontsize=9, frameon=False, labelcolor=TEXT)
        caption = f"{subject.title}, an image of {sides}. {'; '.join(words)} (E70-E73)."
        return DrawnFigure(figure, caption, {"layouts": values})


class Factorized(Figure):
    """Strided and fixed attention: on the image, and as matrices; the two parts of each in two colours."""

    stride: int | None = None
    """The row of the image unless given."""
    summary: int = 1
    """Cells of a block that summarise it, in fixed attention."""
    pixel: tuple[int, int] | None = None
    """Row and column of the query."""

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        if subject.run is not None:
            raise FormersError(f"{subject.run} has one pattern, and two are compared: use formers show pattern for it.")
        height, width = (sized(side, int(subject.options.get(side) or 0), SIDE) for side in ("height", "width"))
        raster = Raster(height=height, width=width)
        n, row, column = height * width, height - 2 if height > 2 else height - 1, width // 2
        row, column = self.pixel or (row, column)
        if not (0 <= row < height and 0 <= column < width):
            raise FormersError(f"pixel {row},{column} is outside the image: give a row and a column from 0,0 to {height - 1},{width - 1}.")
        figure = wide_figure(path, 5.6)
        top, below = figure.subfigures(2, 1, height_ratios=[1.0, 0.06])
        panels = top.subplots(2, 2, width_ratios=[1.0, 1.25])
        values = []
        for (image, matrix), kind in zip(panels, ("strided", "fixed"), strict=True):
            only = {"summary": self.summary, "subblocks": 1} if kind == "fixed" else {}
            pattern = subject.variant(pattern=kind, stride=self.stride or width, **only).pattern
            marks = part_marks(pattern, n)
            query = row * width + column
            _paint(image, _with_query(marks, query)[query].reshape(height, width))
            _paint(matrix, marks)
            matrix.plot([n + 0.02 * n], [query + 0.5], marker="<", markersize=6, color="#000000", clip_on=False)
            matrix.set(xlim=(0, n), ylim=(n, 0))
            image.set_title(f"{kind}: what pixel {row},{column} sees", fontsize=9, color=TEXT)
            matrix.set_title("query down, key across", fontsize=9, color=TEXT)
            values.append({"pattern": pattern.model_dump(mode="json"), "marks": ["".join(line) for line in marks.tolist()]})
        _legend(below)
        caption = (
            f"{subject.title}, an image of {height} by {width}, stride {self.stride or width}, {self.summary} summary cell"
            f"{'s' * (self.summary > 1)} a block: the first part A(1), and what the second part A(2) adds (E80-E83)."
        )
        return DrawnFigure(figure, caption, {"image": raster.model_dump(mode="json"), "pixel": [row, column], "patterns": values})


def part_marks(pattern: Pattern, n: int) -> NDArray[np.str_]:
    """By query and key (n, n): # in the first part of a factorised pattern, + in the second alone, nothing in neither."""
    if not isinstance(pattern, Strided | Fixed):
        raise FormersError(f"{spell(pattern)} has no parts to tell apart: use=merged of the sparse-transformer has.")
    first, second = (part.mask(n)[0].numpy() for part in pattern.parts())
    marks = np.full((n, n), " ")
    marks[second] = MEMORY
    marks[first] = OWN
    return marks


def _with_query(marks: NDArray[np.str_], query: int) -> NDArray[np.str_]:
    marks = marks.copy()
    marks[query, query] = QUERY
    return marks


KINDS = {" ": FAINT, OWN: COLOURS[OWN], MEMORY: COLOURS[MEMORY], QUERY: COLOURS[QUERY]}


def _paint(axes: Any, marks: NDArray[np.str_]) -> None:
    from matplotlib.colors import ListedColormap

    kinds, (height, width) = list(KINDS), marks.shape
    numbers = np.array([[kinds.index(mark) for mark in row] for row in marks.tolist()])
    axes.imshow(
        numbers, cmap=ListedColormap(list(KINDS.values())), vmin=0, vmax=len(kinds) - 1, interpolation="none",
        extent=(0, width, height, 0),
    )  # fmt: skip
    if max(height, width) <= 64:
        axes.hlines(range(1, height), 0, width, color=LINE, linewidth=0.6)
        axes.vlines(range(1, width), 0, height, color=LINE, linewidth=0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    tidy(axes)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    names = {QUERY: "query", OWN: "seen, A(1)", MEMORY: "seen, A(2) alone", " ": "not seen"}
    patches = [Patch(facecolor=KINDS[mark], edgecolor="#9aa3ad", linewidth=0.5, label=name) for mark, name in names.items()]
    figure.legend(handles=patches, loc="center", ncols=4, fontsize=9, frameon=False, labelcolor=TEXT, columnspacing=1.0)
