"""Training on images: the member's spec for them, and their batches."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import torch

from formers.baselines.images import image_baselines
from formers.core import FormersError, nearest
from formers.data import Reading
from formers.data.images import ImageBatches, ImageData, ImageOptions, evaluated, open_images
from formers.family import spec as member_spec
from formers.family.images import on_images
from formers.family.members import member as find_member
from formers.generation.images import cells_of, image_shape, levels_of
from formers.model import Spec, check

log = logging.getLogger(__name__)

WORDS = {"head": ("categorical", "mixture"), "condition": ("none", "class", "small", "grey")}
"""Options of image-transformer that are words, and these; the first is the default."""
IMAGE_OPTIONS = ("head", "mixtures", "condition")
"""Options of image-transformer that other members have, too, where they are trained on images."""


def prepare_images(
    member: str, data: str | Path, preset: str | None, options: dict[str, Any], reading: Reading
) -> tuple[Spec, ImageData, ImageBatches]:
    """The spec of a member fitted to images, the images, and batches of them."""
    refuse_reading(str(data), reading)
    known = find_member(member)
    said = {**known.presets.get(preset or "", {}), **options}
    height, width = said.get("height"), said.get("width")
    size = (height, width) if isinstance(height, int) and isinstance(width, int) and min(height, width) > 0 else None
    levels = options.get("levels", options.get("vocab", reading.levels))
    opened = open_images(data, image_options(reading, levels), size)
    spec = _spec(member, opened, preset, options, said)
    check(spec)
    return spec, opened, batches_of(spec, opened, reading)


def open_for(spec: Spec, data: str | Path, reading: Reading) -> tuple[ImageData, ImageBatches]:
    """Images as the model of a spec reads them."""
    refuse_reading(str(data), reading)
    if spec.image is None:
        raise FormersError(
            f"{data} has images, and {spec.name or 'this model'} was not trained on images: use a run that was, or give other data."
        )
    levels = levels_of(spec)
    shape = image_shape(spec)
    size = shape[:2]
    opened = open_images(data, image_options(reading, levels if reading.levels == levels else None))
    if opened.levels != levels or opened.shape[:2] != size:
        opened = open_images(data, image_options(reading, levels), size)
    if opened.shape != shape:
        raise FormersError(f"{data} has images of {_words(opened.shape)}, and the model reads {_words(shape)}.")
    return opened, batches_of(spec, opened, reading)


def image_options(reading: Reading, levels: int | None) -> ImageOptions:
    """How images are read, with so many levels."""
    return ImageOptions(levels=levels, grey=reading.grey, flips=reading.flips, skip_bad=reading.skip_bad)


def batches_of(spec: Spec, data: ImageData, reading: Reading) -> ImageBatches:
    """Batches of images for the model of a spec."""
    if spec.labels is not None and (data.labels is None or len(data.labels) != spec.labels):
        count = "no classes" if data.labels is None else f"{len(data.labels)} classes"
        raise FormersError(f"{data.source} has {count}, and the model is conditioned on {spec.labels}: leave condition=class out.")
    assert spec.image is not None
    return ImageBatches(data, cells_of(spec), reading.flips)


def image_baselines_of(batches: ImageBatches, part: str, limit: int | None = None) -> dict[str, float | int | str]:
    """Simple baselines for the same images, in bits per dimension, and nats per image if they are binary.

    Tables are fitted to the training images. Those of PNG and WebP are sizes of files, upper bounds with their headers.
    """
    train = evaluated(batches.data, "train")
    held = torch.arange(len(batches.parts[part]))[:limit]
    found = image_baselines(train, batches.images(part, held), batches.data.levels)
    if batches.data.levels != 2:
        return dict(found)
    dimensions = math.prod(batches.data.shape)
    names = {"marginal_bits_per_dimension": "marginal_nats_per_image", "context_bits_per_dimension": "context_nats_per_image"}
    return {**found, **{nats: found[bits] * dimensions * math.log(2) for bits, nats in names.items() if bits in found}}


def refuse_reading(data: str, reading: Reading) -> None:
    """Raises for options that are for texts."""
    if reading.tokens is not None:
        raise FormersError(f"tokens={reading.tokens} is for texts, and {data} has images: leave it out.")
    if reading.valid is not None:
        raise FormersError(f"valid={reading.valid} cannot be used with {data}, whose images are split already: leave it out.")


def _spec(member: str, data: ImageData, preset: str | None, options: dict[str, Any], said: dict[str, Any]) -> Spec:
    """The spec of a member for images of this shape, with this many levels and classes."""
    known, (height, width, channels) = find_member(member), data.shape
    condition = said.get("condition", "none")
    labels = len(data.labels or ()) or None if condition == "class" else None
    if condition == "class" and labels is None:
        raise FormersError(f"condition=class needs classes, and {data.source} has none: give a folder for each class, or leave it out.")
    mixture = said.get("head") == "mixture"
    for name, words in {} if "layout" in known.options else WORDS.items():  # image-transformer raises for them itself
        if said.get(name, words[0]) not in words:
            raise FormersError(f"{name}={said[name]} is unknown for images: {nearest(str(said[name]), words)}")
    shape: dict[str, Any] = {"height": height, "width": width, "channels": channels}
    for name, value in {**shape, "levels": data.levels, "labels": labels}.items():
        if name in said and name in options and options[name] != value:
            raise FormersError(f"{name}={options[name]} does not match {data.source}, where it is {value}: leave {name} out.")
    if "layout" in known.options:  # the Image Transformer itself
        own = {name: value for name, value in options.items() if name not in ("vocab", "levels", "labels")}
        return member_spec(member, preset=preset, **{**own, **shape, "levels": data.levels, "labels": labels})
    if condition not in ("none", "class"):
        raise FormersError(f"condition={condition} is for image-transformer, which has an encoder for it: use it instead of {member}.")
    positions = height * width * (1 if mixture else channels)
    fitted = {"length": positions, "height": height, "width": width, "channels": 1 if mixture else channels}
    own = {name: value for name, value in options.items() if name not in (*IMAGE_OPTIONS, "vocab", "levels", "labels")}
    if own.get("length", positions) != positions:
        raise FormersError(
            f"length={own['length']} does not match {data.source}, whose images have {positions} positions: leave length out."
        )
    sizes = {**own, **{name: value for name, value in fitted.items() if name in known.options}, "vocab": data.levels}
    if "tied" in known.options:
        sizes["tied"] = False
    base = member_spec(member, preset=preset, **sizes)
    return on_images(
        base, height, width, channels, levels=data.levels, head="mixture" if mixture else "categorical",
        mixtures=said.get("mixtures", 10), labels=labels,
    )  # fmt: skip


def _words(shape: tuple[int, ...]) -> str:
    """A shape in words."""
    return " x ".join(map(str, shape))
