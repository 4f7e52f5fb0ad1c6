"""Attention as pictures: all heads small, or one map with its tokens on both sides; as .png or .svg, or in the terminal.

The shade of a pair is the square root of its weight, so that a weight of 1% can still be seen beside one of 100%.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from torch import Tensor
from torch.nn import functional as F

from formers.core import FormersError
from formers.inspect.draw.figure import TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.draw.terminal import TIMES, has_unicode, lines_of, ruler, sayable
from formers.inspect.measure.attention import View, which
from formers.inspect.measure.token_labels import plain_label

PANELS = 1024
"""The largest number of heads in one figure."""
LABELS = 100
"""Up to this many tokens each row and column is labelled with its token, beyond that with its number."""
LONG = 18
"""The longest label, in characters; of a longer one the beginning is shown."""
SHADES = "·░▒▓█"
"""No weight at all, and then up to 1/16, 1/4, 9/16 and 1."""
LOW, HIGH = "#f6f8fb", "#123e80"
"""The colours of 0 and 1, as on the page."""
PAST = "#b4560a"
"""The line between a memory and its segment, as on the page."""


def save_heads(view: View, path: str | Path, model: str = "") -> Path:
    """Writes a small map of every layer and head, .png or .svg, layers down and heads across, and returns its path."""
    if view.layers * view.heads > PANELS:
        raise FormersError(f"{view.layers} layers of {view.heads} heads are too many for one picture: choose a layer and a head.")
    queries, keys = len(view.queries), len(view.keys)
    side = max(0.7, min(1.7, 9.0 / view.heads))
    tall = side * min(2.0, max(0.5, queries / keys))
    figure = new_figure(path, (side + 0.08) * view.heads + 1.0, (tall + 0.08) * view.layers + 0.8)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0, hspace=0)
    panels = figure.subplots(view.layers, view.heads, squeeze=False)
    for layer in range(view.layers):
        for head in range(view.heads):
            axes = panels[layer][head]
            image = _paint(axes, view.weights[layer, head], view.memory)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_box_aspect(tall / side)
            tidy(axes)
            if layer == 0:
                axes.set_title(f"head {head}" if view.heads <= 8 else str(head), fontsize=8, color=TEXT)
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=8, color=TEXT)
    _scale(figure, image, panels.ravel().tolist())
    things = "" if view.projected else " tokens"
    write_caption(figure, f"{_titled(view, model)}: {view.sides[0]} down, {view.sides[1]} across, {queries} {TIMES} {keys}{things}.")
    return save_figure(figure, path)


def save_map(view: View, path: str | Path, layer: int | None = None, head: int | None = None, model: str = "") -> Path:
    """Writes the map of a layer and a head, the mean over those left out, .png or .svg, with its tokens on both sides.

    Of an alignment (`alignment_of`) this is the usual picture: target tokens down, source tokens across.
    """
    weights = view.chosen(layer, head)
    queries, keys = len(view.queries), len(view.keys)
    longest = max(queries, keys)
    cell = min(0.34, (11.0 if longest <= LABELS else 6.5) / longest)
    figure = new_figure(path, max(3.6, cell * keys + 2.4), max(2.8, cell * queries + 2.2))
    axes = figure.subplots()
    image = _paint(axes, weights, view.memory)
    families, missing = fonts_for([*view.queries, *view.keys])
    for axis, labels in ((axes.xaxis, view.keys), (axes.yaxis, view.queries)):
        places = _places(labels)
        texts = [drawable(short_label(labels[i]), missing) if len(labels) <= LABELS else str(i) for i in places]
        # What looks like a formula is a user's text; a token's label is never typeset as one.
        axis.set_ticks([i + 0.5 for i in places], texts, fontfamily=families, parse_math=False)
    upright = len(view.keys) <= LABELS and max(len(short_label(label)) for label in view.keys) > 1
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(view.sides[1], fontsize=9, color=TEXT)
    axes.set_ylabel(view.sides[0], fontsize=9, color=TEXT)
    tidy(axes)
    size = max(4.0, min(9.0, 60 * cell))
    axes.tick_params(labelsize=size if longest <= LABELS else 8)
    axes.tick_params(axis="x", rotation=90 if upright else 0)
    _scale(figure, image, [axes])
    write_caption(figure, f"{_titled(view, model)}, {which(view, layer, head)}. {view.note}".rstrip())
    return save_figure(figure, path)


def draw_map(view: View, layer: int | None = None, head: int | None = None, columns: int = 80, encoding: str = "utf-8") -> str:
    """The map of a layer and a head as lines of at most `columns` characters: a row a query, a mark a key, its shade the weight.

    Keys that do not fit are pooled; a mark is then the strongest of its pairs. A line separates the memory's keys from the segment's.
    """
    weights = view.chosen(layer, head)
    shown = str if has_unicode(encoding) else plain_label
    queries, keys = ([sayable(short_label(shown(label)), encoding) for label in side] for side in (view.queries, view.keys))
    down = 1 if len(queries) <= 200 else math.ceil(len(queries) / 100)
    rows = queries if down == 1 else [str(row) for row in range(0, len(queries), down)]
    left = max(cell_len(label) for label in rows) + 2
    room = max(columns - left - (view.memory > 0), 8)
    wide = 2 if 2 * len(keys) <= room else 1
    across = math.ceil(len(keys) / room)
    past = view.memory if wide == 2 else 0
    lines = _heading(keys, left, wide, past) if wide == 2 else [" " * left + ruler(math.ceil(len(keys) / across), 1, across)]
    before = math.ceil(view.memory / across)
    for label, marks in zip(rows, _pooled(weights, down, across).tolist(), strict=True):
        shades = [_mark(w) * wide for w in marks]
        if before:
            shades.insert(before, "│")
        lines.append(" " * (left - 1 - cell_len(label)) + label + " " + "".join(shades).rstrip())
    words = f"{view.title}, {which(view, layer, head)}: {view.sides[0]} down, {view.sides[1]} across. {view.note}".rstrip()
    if down * across > 1:
        words += f" Each mark is the strongest of {across} keys {TIMES} {down} queries."
    words += " Of a row's weight · is none, ░ up to 6%, ▒ 25%, ▓ 56%, █ more."
    return sayable("\n".join([*lines, "", *lines_of(words, columns)]), encoding)


def _titled(view: View, model: str) -> str:
    return f"{view.title.capitalize()} of {model}" if model else view.title.capitalize()


def _paint(axes: Any, weights: Tensor, memory: int) -> Any:
    """A map on axes, a row a query, in one hue from white to dark; a line after the keys of a memory."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("attention", [LOW, HIGH])
    queries, keys = weights.shape
    if memory:
        axes.axvline(memory, color=PAST, linewidth=1.0)
    # "antialiased" loses no row where there are more of them than pixels
    return axes.imshow(
        weights.numpy(), cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="antialiased", aspect="auto", extent=(0, keys, queries, 0)
    )


def _scale(figure: Any, image: Any, axes: list[Any]) -> None:
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1], fraction=0.04, pad=0.02, aspect=30)
    bar.ax.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"])
    tidy(bar.ax)
    bar.outline.set_visible(False)


def _places(labels: list[str]) -> list[int]:
    """Which rows or columns are labelled."""
    every = 1 if len(labels) <= LABELS else 2 ** math.ceil(math.log2(len(labels) / 16))
    return list(range(0, len(labels), every))


def short_label(label: str) -> str:
    return label if len(label) <= LONG else label[: LONG - 1] + "…"


def _heading(keys: list[str], left: int, wide: int, past: int) -> list[str]:
    """The labels of columns, written downwards above them; a line after those of the past."""
    height = max(map(len, keys))
    upright = [label.rjust(height) for label in keys]
    lines = []
    for line in range(height):
        cells = [set_cell_size(label[line], wide) for label in upright]
        lines.append((" " * left + "".join([*cells[:past], *("│" if past else ""), *cells[past:]])).rstrip())
    return lines


def _pooled(weights: Tensor, down: int, across: int) -> Tensor:
    """The largest weight of each rectangle of down x across pairs."""
    return F.max_pool2d(weights[None], (down, across), ceil_mode=True)[0]


def _mark(weight: float) -> str:
    """A weight's mark; that of nothing is for nothing alone."""
    return SHADES[0] if weight <= 0 else SHADES[1 + min(int(4 * math.sqrt(weight)), 3)]
