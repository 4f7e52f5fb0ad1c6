"""What turns a stack into a model of images: the generation order, the way in, and the head."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.core import FormersError, Raster
from formers.heads import PixelCategorical, PixelMixture
from formers.heads.pixels import Levels
from formers.inputs import ChannelValues, Pixels
from formers.model import Spec

HeadWord = Literal["categorical", "mixture"]


def image_parts(
    height: int, width: int, channels: int, levels: int, head: HeadWord, mixtures: int, block: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The fields of a spec that images decide.

    A position is a channel value of `levels` with head="categorical", and a whole pixel with head="mixture".
    """
    if head == "categorical":
        raster = Raster(height=height, width=width, channels=channels, block=block)
        return {
            "image": raster,
            "length": raster.cells,
            "vocab": levels,
            "input": ChannelValues(channels=channels),
            "head": PixelCategorical(),
        }
    raster = Raster(height=height, width=width, channels=1, block=block)
    return {
        "image": raster,
        "length": raster.cells,
        "features": channels,
        "input": Pixels(),
        "head": PixelMixture(mixtures=mixtures, channels=channels, levels=levels),
    }


def on_images(
    spec: Spec,
    height: PositiveInt,
    width: PositiveInt,
    channels: PositiveInt = 1,
    *,
    levels: Levels = 256,
    head: HeadWord = "categorical",
    mixtures: PositiveInt = 10,
    labels: PositiveInt | None = None,
) -> Spec:
    """The spec of a language model as a model of images, row after row, with the input and the head of the Image Transformer.

    Its `length` must be the number of positions: height x width x channels, or height x width with head="mixture". With `labels` it is
    conditioned on so many classes.
    """
    parts = image_parts(height, width, channels, levels, head, mixtures)
    if spec.encoder is not None or not spec.head.generates:
        raise FormersError(f"{spec.name or 'the spec'} does not predict one stream position by position: use a decoder for images.")
    if spec.length != parts["length"]:
        raise FormersError(
            f"length={spec.length} does not match images of {height} x {width} x {channels}, which have {parts['length']} positions with "
            f"head={head}: give length={parts['length']}."
        )
    return spec.replace(**{"vocab": None, "features": None, **parts}, labels=labels)
