"""One image in the shape and the levels of a model: from a file, or by its number in a set, e.g. digits:7."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError
from formers.data.images.binary import fixed_binary
from formers.data.images.convert import to_grey, to_levels
from formers.data.images.opening import open_images
from formers.data.images.pillow import SUFFIXES, BadFile, read_image
from formers.data.images.values import BYTE_LEVELS, ImageOptions, Shape
from formers.data.registry import kind_of


class SingleImage(NamedTuple):
    """An image of integer levels, int64 (height, width, channels), and what was done to it."""

    levels: Tensor
    notices: tuple[str, ...]


def read_single(source: str | Path, shape: Shape, levels: int) -> SingleImage:
    """An image as (height, width, channels) with `levels` levels.

    source: a PNG, JPEG or WebP file, which is resized, cropped at the centre and converted to grey or RGB where needed; or SET:NUMBER, a
    validation image of a set, counted from 0, which must have the shape.
    """
    if levels > BYTE_LEVELS:
        raise FormersError(f"{source} has {BYTE_LEVELS} levels, and the model {levels}: use a model of at most {BYTE_LEVELS} levels.")
    path = Path(source).expanduser()
    numbered = _set_and_number(source)
    if numbered is not None:
        return SingleImage(_numbered(*numbered, shape, levels), ())
    if not path.is_file():
        raise FormersError(f"there is no file {str(source)!r}: give an image ({', '.join(SUFFIXES)}), or SET:NUMBER, e.g. digits:7.")
    height, width, channels = shape
    try:
        found = read_image(path)
        notices = []
        if found.shape[:2] != (height, width):
            notices.append(f"{path.name} has {found.shape[0]} x {found.shape[1]} pixels: resized and cropped to {height} x {width}")
            found = read_image(path, (height, width))
    except BadFile as why:
        raise FormersError(f"{source} cannot be read as an image ({why}): give a PNG, JPEG or WebP file.") from None
    image = torch.from_numpy(found.copy())
    if image.shape[2] == 3 and channels == 1:
        notices.append(f"{path.name} has colour: converted to grey")
        image = to_grey(image[None])[0]
    elif image.shape[2] == 1 and channels == 3:
        image = image.expand(height, width, 3)
    elif image.shape[2] != channels:
        raise FormersError(f"{source} is grey or RGB, and the model has {channels} channels: give SET:NUMBER of images with {channels}.")
    return SingleImage(to_levels(image, BYTE_LEVELS, levels).long(), tuple(notices))


def shape_of_set(source: str | Path) -> Shape | None:
    """The shape of the images of the set, where a source is SET:NUMBER; None of a file."""
    numbered = _set_and_number(source)
    return None if numbered is None else open_images(numbered[0]).shape


def _set_and_number(source: str | Path) -> tuple[str, int] | None:
    """The name and the number of SET:NUMBER; None where it names a file, or no set of images."""
    numbered = re.fullmatch(r"(.+):(\d+)", str(source))
    if numbered is None or Path(source).expanduser().exists() or kind_of(numbered[1]) != "images":
        return None
    return numbered[1], int(numbered[2])


def _numbered(name: str, number: int, shape: Shape, levels: int) -> Tensor:
    data = open_images(name)
    if data.levels > levels:
        data = open_images(name, ImageOptions(levels=levels))
    if data.shape != shape or data.levels != levels:
        theirs, ours = (f"{' x '.join(map(str, size))} with {count} levels" for size, count in ((data.shape, data.levels), (shape, levels)))
        raise FormersError(f"{name} has images of {theirs}, and the model of {ours}: give images that the model was trained on.")
    images = data.parts["valid"].images
    if number >= len(images):
        raise FormersError(
            f"{name} has {len(images):,} validation images: give a number from 0 to {len(images) - 1:,} instead of {number}."
        )
    image = images[number : number + 1]
    return (fixed_binary(image, torch.tensor([number]), "valid") if data.binary == "dynamic" else image)[0].long()
