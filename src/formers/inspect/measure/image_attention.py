"""Which pixels a pixel attends to: the attention of a model of images, by layer and head, on the grid of the image.

Position t predicts cell t and is given cell t-1, so a key at position s stands for cell s-1, and position 0 for nothing: no cell comes
before the first. With a(t, s) the weights of the position t that predicts the query pixel,

    w(pixel) = sum of a(t, s) over the positions s whose cell s-1 is a channel of the pixel,        start = a(t, 0),

and start and all w(pixel) together sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError
from formers.generation.images import cells_of, image_shape, levels_of
from formers.inspect.measure.attention import NOTHING
from formers.model import Model, Spec, StackModel
from formers.model.inspection import WEIGHTS

QUERIES = 16_000_000
"""So many weights are kept at most, layers x heads x queries x pixels; beyond that only those of the chosen pixel."""


@dataclass(frozen=True, eq=False)
class PixelAttention:
    """Attention from pixels to pixels of one image."""

    image: Tensor
    """Levels (height, width, channels)."""
    levels: int
    queries: tuple[int, ...]
    """The row-major numbers of the predicted pixels, in increasing order."""
    weights: Tensor
    """(layers, heads, queries, height, width), float32: the share of attention that goes to each pixel."""
    start: Tensor
    """(layers, heads, queries): the share that goes to position 0, before the first pixel."""
    place: NDArray[np.int64]
    """When each pixel (height, width) is generated, counted from 0."""
    pixel: tuple[int, int]
    """Row and column of the chosen pixel, one of the queries."""
    channel: int = 0
    """Which channel of the pixel is predicted; 0 where a position is a whole pixel."""
    whole: bool = True
    """Whether a position is a whole pixel."""

    @property
    def layers(self) -> int:
        return self.weights.shape[0]

    @property
    def heads(self) -> int:
        return self.weights.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.image.shape[0], self.image.shape[1]

    @property
    def query(self) -> int:
        """The place of the chosen pixel among the queries."""
        return self.queries.index(self.pixel[0] * self.size[1] + self.pixel[1])

    @property
    def known(self) -> NDArray[np.bool_]:
        """The pixels (height, width) that are complete when the chosen pixel is predicted."""
        return self.place < self.place[self.pixel]

    def chosen(self, layer: int | None = None, head: int | None = None) -> tuple[Tensor, float]:
        """The weights (height, width) of the chosen pixel and its share of the start, in a layer and a head or the mean of all."""
        for name, value, count in (("layer", layer, self.layers), ("head", head, self.heads)):
            if value is not None and not 0 <= value < count:
                raise FormersError(f"{name}={value} does not exist: give 0 ... {count - 1}.")
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        return self.weights[layers, heads, self.query].mean(dim=(0, 1)), float(self.start[layers, heads, self.query].mean())


def shape_of(spec: Spec) -> tuple[int, int, int]:
    """Height, width and channels of the images of a model; a model of anything else is refused."""
    if spec.image is None:
        raise FormersError(f"{spec.name or 'this model'} is not a model of images: give it a text with --text.")
    return image_shape(spec)


def pixel_attention(
    model: Model, image: Tensor, pixel: tuple[int, int] | None = None, channel: int = 0, label: int | None = None, every: bool = False
) -> PixelAttention:
    """The attention with which a pixel (row, column) of an image (height, width, channels) of levels is predicted.

    pixel: near the centre unless given. channel: which of its channel values is predicted, where each is a position. label: the class,
    where the model is conditioned on one. every: keeps the attention of all pixels, if that is not too much.
    """
    spec = model.spec
    shape = shape_of(spec)
    raster = spec.image
    assert raster is not None
    if not isinstance(model, StackModel):
        raise FormersError(f"{spec.name or 'this model'} reads a second image, whose attention is not drawn: use one without an encoder.")
    if tuple(image.shape) != shape:
        raise FormersError(f"the image has shape {tuple(image.shape)}: give (height, width, channels) = {shape}.")
    pixel = _checked_pixel(pixel, shape)
    if not 0 <= channel < raster.channels:
        raise FormersError(f"channel={channel} is not predicted by itself: give 0 ... {raster.channels - 1}.")
    place = torch.empty(raster.pixels, dtype=torch.int64)
    place[raster.replace(channels=1).order()] = torch.arange(raster.pixels)
    asked = int(place[pixel[0] * raster.width + pixel[1]])
    kept = spec.attention_steps * spec.heads
    every = every and kept * raster.cells**2 <= WEIGHTS and kept * raster.pixels**2 <= QUERIES
    cells = cells_of(spec)
    given = cells.inputs(cells.stream(image[None]))
    positions = torch.arange(raster.pixels) * raster.channels + channel if every else torch.tensor([asked * raster.channels + channel])
    device = next(model.parameters()).device
    seen = model.inspect(given[:, : int(positions[-1]) + 1].to(device), label=_label(spec, label, device))
    if not seen.attention:
        raise FormersError(NOTHING.format(spec.name or "this model"))
    if any(maps.shape[3] != maps.shape[2] for maps in seen.attention):
        raise FormersError(f"{spec.name or 'this model'} attends to keys that are not pixels: use a member whose keys are.")
    rows = torch.stack([maps[0, :, spec.extra :, spec.extra :][:, positions] for maps in seen.attention]).float().cpu()
    layers, heads, queries, keys = rows.shape
    seen_cells = rows.new_zeros(layers, heads, queries, raster.cells)
    seen_cells[..., : keys - 1] = rows[..., 1:]  # the key at position s stands for cell s-1
    weights = seen_cells.view(layers, heads, queries, raster.pixels, raster.channels).sum(dim=-1)[..., place]
    pixels = raster.replace(channels=1).order()[positions // raster.channels]
    order = pixels.argsort()
    return PixelAttention(
        image=image.cpu(),
        levels=levels_of(spec),
        queries=tuple(pixels[order].tolist()),
        weights=weights.view(layers, heads, queries, raster.height, raster.width)[:, :, order],
        start=rows[..., 0][:, :, order],
        place=place.view(raster.height, raster.width).numpy(),
        pixel=pixel,
        channel=channel,
        whole=spec.features is not None or raster.channels == 1,
    )


def _checked_pixel(pixel: tuple[int, int] | None, shape: tuple[int, int, int]) -> tuple[int, int]:
    """The pixel, or one a little below the centre."""
    height, width, _ = shape
    row, column = (height * 5 // 8, width // 2) if pixel is None else pixel
    if not (0 <= row < height and 0 <= column < width):
        raise FormersError(f"pixel {row},{column} is outside the image: give ROW,COLUMN from 0,0 to {height - 1},{width - 1}.")
    return row, column


def _label(spec: Spec, label: int | None, device: torch.device) -> Tensor | None:
    if spec.labels is None:
        if label is not None:
            raise FormersError(f"class {label} is given, and {spec.name or 'this model'} is not conditioned on classes: leave it out.")
        return None
    if label is None:
        raise FormersError(f"{spec.name or 'this model'} is conditioned on {spec.labels} classes: give the image's with --class.")
    if not 0 <= label < spec.labels:
        raise FormersError(f"class {label} does not exist: give 0 ... {spec.labels - 1}.")
    return torch.tensor([label], device=device)


def pixel_attention_facts(view: PixelAttention) -> dict[str, Any]:
    """What a view shows, ready for JSON: by layer and head the share of each pixel, row by row, and of the start, to four digits."""

    def rounded(values: Tensor) -> Any:
        return _fours(((values.double() * 1e4).round() / 1e4).tolist())

    return {
        "height": view.size[0],
        "width": view.size[1],
        "pixel": list(view.pixel),
        "channel": view.channel,
        "layers": view.layers,
        "heads": view.heads,
        "start": rounded(view.start[:, :, view.query]),
        "weights": rounded(view.weights[:, :, view.query]),
    }


def _fours(values: Any) -> Any:
    return [_fours(value) for value in values] if isinstance(values, list) else round(values, 4)
