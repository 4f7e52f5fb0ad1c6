"""A pattern, seen: one row a query, a mark where it may look at a key; in the terminal or as a picture.

What is drawn is `Pattern.mask` and nothing else. Where the pairs are too many for the terminal's columns, a mark stands for a
rectangle of them: filled if all are allowed, a dot if none is, shaded by their share otherwise.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from formers.inspect.draw.figure import FAINT, INK, LINE, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.terminal import TIMES, has_unicode, lines_of, margin, ruler, sayable
from formers.inspect.measure.patterns import pattern_masks
from formers.patterns import Pattern

WIDE = 32
"""Up to this length each query has its own row, and a pair two characters, which makes it a square."""
SHADES = "·░▒▓█"


def draw_pattern(pattern: Pattern, length: int = 32, heads: int = 1, layer: int = 0, columns: int = 80, encoding: str = "utf-8") -> str:
    """The pattern as lines of at most `columns` characters, of ASCII alone if the encoding is not UTF-8; heads that differ one by one."""
    drawn = pattern_masks(pattern, length, heads, layer)
    lines, pairs = [], 1
    for mask, title in zip(drawn.mask, drawn.heads, strict=True):
        rows, pairs = grid(mask, columns, has_unicode(encoding))
        lines += [title, *rows, ""] if title else [*rows, ""]
    words = drawn.caption
    if pairs > 1:
        words += f" Each mark stands for {pairs} keys {TIMES} {2 * pairs} queries, shaded by the share allowed."
    return sayable("\n".join([*lines, *lines_of(words, columns)]), encoding)


def save_pattern(pattern: Pattern, path: str | Path, length: int = 32, heads: int = 1, layer: int = 0) -> Path:
    """Writes the pattern as a picture, .png or .svg, a panel for each head that differs, and returns its path."""
    drawn = pattern_masks(pattern, length, heads, layer)
    across = min(4, len(drawn.mask))
    down = math.ceil(len(drawn.mask) / across)
    side = 4.2 if across == 1 else 3.0
    figure = new_figure(path, side * across, (side + 0.2) * down + 0.1)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, mask, title in zip(panels, drawn.mask, drawn.heads, strict=False):
        paint_mask(axes, mask, title)
    for axes in panels[len(drawn.mask) :]:
        axes.set_visible(False)
    write_caption(figure, drawn.caption)
    return save_figure(figure, path)


def paint_mask(axes: Any, mask: Tensor, title: str = "") -> None:
    """A mask (length, length) on axes, a row for each query."""
    from matplotlib.colors import ListedColormap

    length = len(mask)
    axes.imshow(mask.numpy(), cmap=ListedColormap([FAINT, INK]), vmin=0, vmax=1, interpolation="none", extent=(0, length, length, 0))
    if length <= 64:
        between = range(1, length)
        axes.hlines(between, 0, length, color=LINE, linewidth=0.6)
        axes.vlines(between, 0, length, color=LINE, linewidth=0.6)
    _ticks(axes, length)
    if title:
        axes.set_title(title.strip(), fontsize=9, color=TEXT)


def grid(mask: Tensor, columns: int, unicode: bool) -> tuple[list[str], int]:
    """The lines of one mask with their axes, and how many keys a mark stands for."""
    length = len(mask)
    room = max(columns - len(margin("", length)), 8)
    if length <= WIDE and 2 * length <= room:
        rows, each, width = ["".join("■ " if v else "· " for v in row).rstrip() for row in mask.tolist()], 1, 2
        labels = [str(i) for i in range(length)]
    elif length <= room and unicode:
        pairs = F.pad(mask.int(), (0, 0, 0, length % 2)).view(-1, 2, length)
        rows, each, width = ["".join("·▄▀█"[v] for v in row) for row in (2 * pairs[:, 0] + pairs[:, 1]).tolist()], 1, 1
        labels = [str(2 * r) if r % 4 == 0 else "" for r in range(len(rows))]
    elif length <= room:
        rows, each, width = ["".join("·█"[v] for v in row) for row in mask.int().tolist()], 1, 1
        labels = [str(i) if i % 4 == 0 else "" for i in range(length)]
    else:
        each, width = math.ceil(length / room), 1
        rows = ["".join(_shade(share) for share in row) for row in _shares(mask, 2 * each, each)]
        labels = [str(2 * each * r) if r % 4 == 0 else "" for r in range(len(rows))]
    left = margin("", length)
    body = [margin(label, length) + row for label, row in zip(labels, rows, strict=True)]
    return [" query ↓  key →", left + ruler(math.ceil(length / each), width, each), *body], each


def _shares(mask: Tensor, down: int, across: int) -> list[list[float]]:
    """The share of allowed pairs in each rectangle of down x across pairs; those at the edges are smaller."""
    pooled = F.avg_pool2d(mask[None].double(), (down, across), ceil_mode=True, count_include_pad=False)
    return pooled[0].tolist()


def _shade(share: float) -> str:
    """Empty only for none and filled only for all, however many pairs there are."""
    if share in (0.0, 1.0):
        return SHADES[0] if share == 0.0 else SHADES[-1]
    return SHADES[1 + min(int(3 * share), 2)]


def _ticks(axes: Any, length: int) -> None:
    every = max(1, 2 ** math.ceil(math.log2(length / 8)))
    places = list(range(0, length, every))
    axes.set_xticks([p + 0.5 for p in places], places)
    axes.set_yticks([p + 0.5 for p in places], places)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("key", fontsize=8, color=TEXT)
    axes.set_ylabel("query", fontsize=8, color=TEXT)
    tidy(axes)
