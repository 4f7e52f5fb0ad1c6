"""Drawings of a pattern on an image: the matrix of all pairs, and what one pixel sees (measure/pattern_images.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.inspect.draw.figure import LINE, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.patterns import draw_pattern, paint_mask
from formers.inspect.draw.terminal import lines_of, margin, ruler, sayable
from formers.inspect.measure.pattern_images import (
    BEFORE,
    LATER,
    MEMORY,
    OWN,
    QUERY,
    ImageGrid,
    checked_pixel,
    matrix_length,
    own_block,
    pixel_marks,
)
from formers.inspect.measure.patterns import pattern_masks
from formers.patterns import Pattern

COLOURS = {QUERY: "#000000", OWN: "#23508e", MEMORY: "#e69f00", BEFORE: "#cfd4da", LATER: "#f4f5f7"}
"""Dark blue and orange can be distinguished by colour-blind readers, and by their brightness."""
SHOWN = {QUERY: "Q", OWN: "█", MEMORY: "▒", BEFORE: "·", LATER: " "}
FRAME = "#000000"


def draw_on_image(
    pattern: Pattern,
    grid: ImageGrid,
    pixel: tuple[int, int] | None = None,
    length: int | None = None,
    heads: int = 1,
    layer: int = 0,
    columns: int = 80,
    encoding: str = "utf-8",
) -> str:
    """The matrix of a pattern, and below it what one pixel sees on the grid of the image, in lines of at most `columns` characters."""
    matrix = draw_pattern(pattern, matrix_length(grid, length), heads, layer, columns, encoding)
    height, width, lines = grid.raster.height, grid.raster.width, []
    pixel = checked_pixel(pattern.at(layer), grid, pixel)
    wide = 2 if 2 * width + len(margin("", height)) <= columns else 1
    if wide * width + len(margin("", height)) > columns:
        words = f"The image is wider than {columns} columns: --out pattern.png draws what pixel {pixel[0]},{pixel[1]} sees."
        return "\n".join([matrix, "", *lines_of(words, columns)])
    for head in range(heads if pattern.at(layer).by_head else 1):
        lines += [f" head {head}", ""] if pattern.at(layer).by_head and heads > 1 else []
        lines += [" row ↓  column →", margin("", height) + ruler(width, wide)]
        for row, marks in enumerate(pixel_marks(pattern, grid, pixel, head, layer)):
            shown = "".join(SHOWN[mark] * wide if mark in (OWN, MEMORY) else SHOWN[mark].ljust(wide) for mark in marks)
            lines.append((margin(str(row), height) + shown).rstrip())
        lines.append("")
    blocks = own_block(pattern.at(layer), grid, pixel) is not None
    words = f"Q is the query, pixel {pixel[0]},{pixel[1]}. █ is seen" + (" in its block, ▒ in the memory of the block" if blocks else "")
    words += ", · is generated before and not seen, an empty place is generated later."
    return "\n".join([matrix, "", *(sayable(line, encoding) for line in [*lines, *lines_of(words, columns)])])


def save_on_image(
    pattern: Pattern,
    path: str | Path,
    grid: ImageGrid,
    pixel: tuple[int, int] | None = None,
    length: int | None = None,
    heads: int = 1,
    layer: int = 0,
) -> Path:
    """Writes a picture, .png or .svg: for each head that differs the matrix, and beside it what one pixel sees on the image."""
    length = matrix_length(grid, length)
    drawn, pixel = pattern_masks(pattern, length, heads, layer), checked_pixel(pattern.at(layer), grid, pixel)
    figure = new_figure(path, 8.8, 5.4 * len(drawn.mask))
    panels = figure.subplots(len(drawn.mask), 2, squeeze=False)
    for head, (mask, title) in enumerate(zip(drawn.mask, drawn.heads, strict=True)):
        matrix, image = panels[head]
        paint_mask(matrix, mask, title)
        position = grid.position(pixel)
        if position < length:
            matrix.plot([1.02 * length], [position + 0.5], marker="<", markersize=7, color=FRAME, clip_on=False)
            matrix.set(xlim=(0, length), ylim=(length, 0))
        paint_image(image, pattern.at(layer), grid, pixel, pixel_marks(pattern, grid, pixel, head, layer))
        image.set_title(f"what pixel {pixel[0]},{pixel[1]} sees", fontsize=9, color=TEXT, pad=18)
    write_caption(figure, f"{drawn.caption} The arrow points to the row of the query.")
    return save_figure(figure, path)


def paint_image(axes: Any, pattern: Pattern, grid: ImageGrid, pixel: tuple[int, int], marks: list[str]) -> None:
    """The marks as coloured pixels, the query's block framed, and a legend below."""
    own = own_block(pattern, grid, pixel)
    paint_marks(axes, grid, marks, own)
    patches = legend_patches(marks, own is not None)
    axes.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, fontsize=7.5, frameon=False, labelcolor=TEXT)


def paint_marks(axes: Any, grid: ImageGrid, marks: list[str], own: NDArray[np.bool_] | None) -> None:
    """The marks as coloured pixels, and a frame around the query's block where there is one."""
    from matplotlib.colors import ListedColormap

    height, width = grid.raster.height, grid.raster.width
    kinds = list(COLOURS)
    numbers = np.array([[kinds.index(mark) for mark in row] for row in marks])
    axes.imshow(
        numbers,
        cmap=ListedColormap(list(COLOURS.values())),
        vmin=0,
        vmax=len(kinds) - 1,
        interpolation="none",
        extent=(0, width, height, 0),
    )
    if max(height, width) <= 64:
        axes.hlines(range(1, height), 0, width, color=LINE, linewidth=0.6)
        axes.vlines(range(1, width), 0, height, color=LINE, linewidth=0.6)
    if own is not None:
        paint_outline(axes, own)
    every = [max(1, -(-side // 8)) for side in (width, height)]
    for axis, side, step in ((axes.xaxis, width, every[0]), (axes.yaxis, height, every[1])):
        axis.set_ticks([place + 0.5 for place in range(0, side, step)], [str(place) for place in range(0, side, step)])
    axes.xaxis.tick_top()
    tidy(axes)


def legend_patches(marks: list[str], blocks: bool) -> list[Any]:
    """What the colours of marks mean; of a pattern with blocks, its memory is told apart."""
    from matplotlib.patches import Patch

    names = {QUERY: "query", OWN: "seen, own block (framed)" if blocks else "seen", MEMORY: "seen, memory"}
    names |= {BEFORE: "generated before, not seen", LATER: "generated later"}
    there = {mark for row in marks for mark in row}
    return [Patch(facecolor=COLOURS[mark], edgecolor="#9aa3ad", linewidth=0.5, label=name) for mark, name in names.items() if mark in there]


def paint_outline(axes: Any, inside: NDArray[np.bool_]) -> None:
    """A line around a set of pixels."""
    padded = np.pad(inside, 1)
    for row, column in zip(*np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1]), strict=True):
        axes.plot([column, column + 1], [row, row], color=FRAME, linewidth=1.8, clip_on=False, solid_capstyle="projecting")
    for row, column in zip(*np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1]), strict=True):
        axes.plot([column, column], [row, row + 1], color=FRAME, linewidth=1.8, clip_on=False, solid_capstyle="projecting")
