"""The Image Transformer of Parmar et al. (2018): images as sequences, with local attention in one dimension or in two.

layout=1d    blocks of pixels in row-major order; each sees itself causally and the pixels before it        E70
layout=2d    rectangular blocks, one after the other; each sees itself causally, rows above it with columns to either side, and
             columns to its left                                                                             E71-E75

Blocks count pixels and need not divide the image. One position is a channel value (head=categorical) or a whole pixel (head=mixture).
Equations E70-E79; docs/image-transformer.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from formers.attention import DotProduct
from formers.core import FormersError, Raster
from formers.depth import Stacked
from formers.family.images import HeadWord, image_parts
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.heads import NoHead
from formers.heads.pixels import Levels
from formers.inputs import ChannelValues, Pixels
from formers.model import Spec
from formers.patterns import Blocks, Full, LocalGrid, OrderedGrid, Pattern
from formers.position import ImagePosition

Block = PositiveInt | tuple[PositiveInt, PositiveInt]
Memory = NonNegativeInt | tuple[NonNegativeInt, NonNegativeInt]
CELLS = 256
"""Positions of a query block of the paper's 1-D attention."""
SIDE = 8
"""Pixels of a side of a query block in two dimensions, and of its memory, unless given."""

# CIFAR-10 with 256 levels, as tensor2tensor configures it; 85 pixels are 255 of its 256 positions.
BASE: dict[str, Any] = {
    "height": 32, "width": 32, "channels": 3, "dim": 512, "heads": 4, "layers": 12, "hidden": 2048, "dropout": 0.3,
    "query_block": 85, "memory_block": 85,
}  # fmt: skip
# The same with a mixture of 10 logistics; queries, keys and values are 512 wide together.
MIXTURE: dict[str, Any] = {
    "height": 32, "width": 32, "channels": 3, "head": "mixture", "mixtures": 10, "dim": 256, "heads": 8, "head_dim": 64, "layers": 12,
    "hidden": 512, "dropout": 0.1, "position": "learned", "query_block": 256, "memory_block": 256,
}  # fmt: skip
# Super-resolution of 8 x 8 to 32 x 32 pixels: an encoder of 4 layers over all pixels, a decoder of 12.
SUPERRESOLUTION: dict[str, Any] = {**BASE, "condition": "small", "encoder_layers": 4}

_PAPER: dict[str, Any] = {"learning_rate": 7e-4, "warmup": 4000, "schedule": "inverse-sqrt", "weight_decay": 0.0, "beta2": 0.98}
TRAINING = {
    "": {"batch": 16, "learning_rate": 2e-3, "weight_decay": 0.01},
    **dict.fromkeys(("base", "mixture", "superresolution"), _PAPER),
}


def image_transformer(
    *,
    height: PositiveInt = 8,
    width: PositiveInt = 8,
    channels: PositiveInt = 1,
    levels: Levels | None = None,
    vocab: Levels | None = None,
    head: HeadWord = "categorical",
    mixtures: PositiveInt = 10,
    layout: Literal["1d", "2d"] = "1d",
    query_block: Block | None = None,
    memory_block: Memory | None = None,
    condition: Literal["none", "class", "small", "grey"] = "none",
    labels: PositiveInt | None = None,
    factor: PositiveInt | None = None,
    encoder_layers: PositiveInt = 2,
    sizes: TransformerSizes = TransformerSizes(dropout=0.3, activation="relu", norm="post"),
    length: PositiveInt | None = None,
    position: Literal["sinusoidal", "learned"] = "sinusoidal",
    attention_bias: bool = False,
) -> Spec:
    """A model of images of height x width pixels, each channel with `levels` levels (also called `vocab`), 256 unless given.

    query_block and memory_block count pixels: a number with layout=1d, (rows, columns) with layout=2d. condition=class is on one of
    `labels` classes; small is on the image scaled down by `factor`, and grey on its grey values, both read by an encoder.
    """
    if levels is not None and vocab is not None and levels != vocab:
        raise FormersError(f"levels={levels} and vocab={vocab} are two names of one number: give one of them.")
    levels = levels or vocab or 256
    if (condition == "class") != (labels is not None):
        raise FormersError(f"condition={condition} and labels={labels} do not match: give both condition=class and labels, or neither.")
    block, pattern = _pattern(layout, query_block, memory_block, height, width, 1 if head == "mixture" else channels)
    parts = image_parts(height, width, channels, levels, head, mixtures, block)
    if length not in (None, parts["length"]):
        raise FormersError(
            f"length={length} does not match {height} x {width} pixels, which are {parts['length']} positions with head={head} and "
            f"channels={channels}: leave length out."
        )
    common: dict[str, Any] = dict(
        **sizes.fields, attention=DotProduct(bias=attention_bias), residual=residual(sizes.norm), feedforward=sizes.feedforward,
    )  # fmt: skip
    encoder = None
    if condition == "small" or condition == "grey":  # mypy narrows these
        shape = source_shape(condition, height, width, channels, factor)
        source = image_parts(*shape, levels, head, mixtures)
        raster: Raster = source["image"]
        way_in = Pixels(shifted=False) if head == "mixture" else ChannelValues(channels=shape[2], shifted=False)
        encoder = Spec(
            name="image-transformer's encoder", **{**common, **source, "input": way_in, "head": NoHead()},
            position=ImagePosition(raster=raster, form=position), pattern=Full(), depth=Stacked(layers=encoder_layers),
        )  # fmt: skip
    elif factor is not None:
        raise FormersError(f"factor={factor} scales the image of condition=small, and condition={condition}: leave factor out.")
    return Spec(
        name="image-transformer", **{**common, **parts}, labels=labels, position=ImagePosition(raster=parts["image"], form=position),
        pattern=pattern, depth=Stacked(layers=sizes.layers), encoder=encoder,
    )  # fmt: skip


def source_shape(condition: Literal["small", "grey"], height: int, width: int, channels: int, factor: int | None) -> tuple[int, int, int]:
    """Height, width and channels of the image that the encoder reads."""
    if condition == "grey":
        if channels != 3:
            raise FormersError(f"condition=grey colours the grey values of RGB images, and channels={channels}: give images of 3 channels.")
        return height, width, 1
    factor = factor or (4 if min(height, width) >= 16 else 2)
    if factor == 1:
        raise FormersError("factor=1 makes the source the image itself: give a factor of at least 2.")
    if height % factor or width % factor:
        raise FormersError(f"factor={factor} does not divide an image of {height} x {width} pixels: give a factor that divides both.")
    return height // factor, width // factor, channels


def _pattern(
    layout: str, query: Block | None, memory: Memory | None, height: int, width: int, cells: int
) -> tuple[tuple[int, int] | None, Pattern]:
    """The block of the generation order, None for row after row, and the pattern of a layout; blocks count pixels of so many cells."""
    pixels = height * width
    if layout == "1d":
        for name, value in (("query_block", query), ("memory_block", memory)):
            if isinstance(value, tuple):
                raise FormersError(f"{name}={value} has two sides, and layout=1d counts pixels in a row: give one number, or layout=2d.")
        rows = max(1, CELLS // cells // width)
        own = min(pixels, rows * width) if query is None else query
        past = min(pixels, 2 * own) if memory is None else memory
        assert isinstance(own, int)
        assert isinstance(past, int)
        if own > pixels:
            raise FormersError(f"query_block={own} is larger than the image of {pixels} pixels: give at most {pixels}.")
        return None, Blocks(query=own * cells, memory=past * cells)
    for name, value in (("query_block", query), ("memory_block", memory)):
        if isinstance(value, int):
            raise FormersError(f"{name}={value} is one number, and layout=2d has rows and columns: give two, as in [{value}, {value}].")
    sides = (min(SIDE, height), min(SIDE, width)) if query is None else query
    flange = (SIDE, SIDE) if memory is None else memory
    assert isinstance(sides, tuple)
    assert isinstance(flange, tuple)
    if sides[0] > height or sides[1] > width:
        raise FormersError(f"query_block={list(sides)} is larger than the image of {height} x {width} pixels: choose a block inside it.")
    return sides, OrderedGrid(grid=LocalGrid(height=height, width=width, query=sides, memory=flange), channels=cells)
