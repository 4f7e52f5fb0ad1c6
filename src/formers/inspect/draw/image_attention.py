"""Which pixels a pixel attends to, as pictures: all layers and heads over the image, one of them, or one in the terminal.

The image is grey. Orange covers a pixel by the square root of its weight over the largest weight that is shown, so that small weights
are seen, too. The predicted pixel is dark blue, and pixels that are generated after it are pale blue: it cannot attend to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError
from formers.inspect.draw.figure import TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.images import UNKNOWN, Rgb, to_rgb
from formers.inspect.draw.terminal import has_unicode, lines_of, sayable
from formers.inspect.draw.terminal_images import Colours, render_rgb
from formers.inspect.measure.image_attention import PixelAttention

ORANGE, QUERY = (236, 112, 0), (0, 45, 130)
PANELS = 400
"""The largest number of heads that are drawn together."""
SHADES = "·░▒▓█"
STRONGEST = 5


def dimmed(view: PixelAttention) -> NDArray[np.float64]:
    """The image in grey (height, width, 3), in pale blue where pixels are later than the chosen one, which is dark blue."""
    light = to_rgb(view.image[None], view.levels)[0].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    grey = (95 + light * 145 / 255)[..., None].repeat(3, axis=2)
    later = 0.3 * grey + 0.7 * np.array(UNKNOWN)
    shown = np.where(view.known[..., None], grey, later)
    shown[view.pixel] = QUERY
    return shown


def over_image(view: PixelAttention, weights: Tensor, top: float) -> Rgb:
    """Weights (height, width) as a layer of orange over the image, uint8 (height, width, 3); `top` covers a pixel fully."""
    cover = np.sqrt(np.clip(weights.double().numpy() / max(top, 1e-12), 0.0, 1.0))[..., None]
    cover[view.pixel] *= 0.5  # of its own earlier channels; its colour stays visible
    return ((1 - cover) * dimmed(view) + cover * np.array(ORANGE)).round().astype(np.uint8)


def save_pixel_attention(
    view: PixelAttention, path: str | Path, layer: int | None = None, head: int | None = None, model: str = ""
) -> Path:
    """Writes a picture, .png or .svg, of all layers and heads, or of the chosen ones, and returns its path."""
    layers = list(range(view.layers)) if layer is None else [layer]
    heads = list(range(view.heads)) if head is None else [head]
    view.chosen(layer, head)  # refuses a layer or head that does not exist
    if len(layers) * len(heads) > PANELS:
        raise FormersError(f"{len(layers)} layers of {len(heads)} heads are too many for one picture: give --layer or --head.")
    maps = [[view.chosen(one, other) for other in heads] for one in layers]
    top = max(float(weights.max()) for row in maps for weights, _ in row)
    tall = view.size[0] / view.size[1]
    side = 3.4 if len(layers) * len(heads) == 1 else max(0.9, min(1.8, 9.0 / len(heads)))
    large = max(side, min(2.6, side * len(layers)))
    figure = new_figure(path, large + (side + 0.1) * len(heads) + 1.1, max((side * tall + 0.28) * len(layers), large * tall + 0.3) + 0.9)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0.02, hspace=0.02)
    cells = figure.add_gridspec(len(layers), 1 + len(heads), width_ratios=[large, *[side] * len(heads)])
    first = figure.add_subplot(cells[:, 0])
    _panel(first, view, to_rgb(view.image[None], view.levels)[0], side=large)
    first.set_title(f"row {view.pixel[0]}, column {view.pixel[1]}", fontsize=9, color=TEXT)
    panels = []
    for row, one in enumerate(layers):
        for column, other in enumerate(heads):
            axes = figure.add_subplot(cells[row, 1 + column])
            weights, start = maps[row][column]
            _panel(axes, view, over_image(view, weights, top), side=side)
            axes.set_xlabel(f"start {100 * start:.0f}%", fontsize=7, color=TEXT, labelpad=2)
            if row == 0:
                axes.set_title(f"head {other}", fontsize=8, color=TEXT)
            if column == 0:
                axes.set_ylabel(f"layer {one}", fontsize=8, color=TEXT)
            panels.append(axes)
    _scale(figure, panels, top)
    write_caption(figure, _caption(view, model))
    return save_figure(figure, path)


def draw_pixel_attention(
    view: PixelAttention,
    layer: int | None = None,
    head: int | None = None,
    columns: int = 80,
    encoding: str = "utf-8",
    colours: Colours = "none",
) -> str:
    """The map of a layer and a head, the mean over those left out, as lines of at most `columns` characters, and what it shows."""
    weights, start = view.chosen(layer, head)
    top = float(weights.max())
    coloured = colours != "none" and has_unicode(encoding)
    if coloured:
        drawing = render_rgb(over_image(view, weights, top), None, columns - 1, None, colours, encoding).split("\n")
    else:
        drawing = _marks(view, weights, top, columns - 1)
    order = weights.flatten().argsort(descending=True, stable=True)[:STRONGEST].tolist()
    found = [(divmod(place, view.size[1]), float(weights.flatten()[place])) for place in order]
    strongest = ", ".join(f"{row},{column} {100 * weight:.1f}%" for (row, column), weight in found if weight > 0)
    which = [f"layer {layer}" if layer is not None else f"mean of {view.layers} layers"]
    which.append(f"head {head}" if head is not None else f"mean of {view.heads} heads")
    words = f"Pixel {view.pixel[0]},{view.pixel[1]} attends to (row,column): {strongest or 'no pixel'}; start {100 * start:.1f}%. "
    words += f"{', '.join(which).capitalize()}. "
    if coloured:
        words += f"Orange: attention, up to {100 * top:.1f}% a pixel. Dark blue: the predicted pixel. Pale blue: later pixels."
    else:
        words += f"Q is the predicted pixel, an empty place a later pixel; · is no attention, ░▒▓█ more, up to {100 * top:.1f}% a pixel."
    return "\n".join(
        [*(f" {sayable(line, encoding)}" for line in drawing), "", *(sayable(line, encoding) for line in lines_of(words, columns))]
    )


def _caption(view: PixelAttention, model: str) -> str:
    which = "" if view.whole else f", channel {view.channel}"
    return (
        f"Attention of {model or 'the model'} when it predicts pixel {view.pixel[0]},{view.pixel[1]}{which} (dark blue): orange is "
        "attention, pale blue are pixels generated later, start is the share of the position before the first pixel."
    )


def _panel(axes: Any, view: PixelAttention, rgb: Rgb, side: float) -> None:
    """A picture on axes, with the predicted pixel framed."""
    from matplotlib.patches import Rectangle

    height, width = view.size
    axes.imshow(rgb, interpolation="nearest", extent=(0, width, height, 0))
    row, column = view.pixel
    line = max(0.5, min(1.6, 14 * side / max(height, width)))
    for colour, thick in (("white", 2.2 * line), ("#002d82", line)):
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=colour, linewidth=thick, zorder=3))
    axes.set_xticks([])
    axes.set_yticks([])
    tidy(axes)


def _scale(figure: Any, axes: list[Any], top: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("attention", ["#808080", "#{:02x}{:02x}{:02x}".format(*ORANGE)])
    ticks = [0.0, top / 16, top / 4, top]
    shown = ScalarMappable(norm=PowerNorm(0.5, 0, top), cmap=colours)
    bar = figure.colorbar(shown, ax=axes, ticks=ticks, fraction=0.04, pad=0.02, aspect=25, shrink=0.9)
    bar.ax.set_yticklabels([f"{100 * tick:.3g}%" for tick in ticks])
    tidy(bar.ax)
    bar.outline.set_visible(False)


def _marks(view: PixelAttention, weights: Tensor, top: float, columns: int) -> list[str]:
    """Lines of text with one mark a pixel, two characters wide if that fits; if the image is wider than `columns`, one mark a square."""
    height, width = view.size
    wide = 2 if 2 * width <= columns else 1
    each = -(-width // columns)
    lines = []
    share = torch.zeros_like(weights) if top <= 0 else weights / top
    for row in range(0, height, each * (1 if wide == 2 else 2)):
        marks = []
        for column in range(0, width, each):
            inside = slice(row, row + each * (1 if wide == 2 else 2)), slice(column, column + each)
            if view.pixel[0] in range(height)[inside[0]] and view.pixel[1] in range(width)[inside[1]]:
                marks.append("Q")
            elif not view.known[inside].any():
                marks.append(" ")
            else:
                most = float(share[inside].max())
                marks.append(SHADES[0] if most <= 0 else SHADES[1 + min(int(4 * most**0.5), 3)])
        lines.append("".join(mark.ljust(wide) if mark in " ·Q" else mark * wide for mark in marks).rstrip())
    return lines
