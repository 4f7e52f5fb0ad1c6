"""Conversions of images: the size, grey, and the number of levels.

grey   = round(0.299 R + 0.587 G + 0.114 B)          ITU-R 601, in Pillow's 16-bit weights
level  = floor(v * levels / own levels)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from formers.core import FormersError
from formers.data.images.pillow import fitted, pillow
from formers.data.images.values import BYTE_LEVELS, ImageOptions, Opened, Shape

LUMA = (19595, 38470, 7471)
"""The weights of red, green and blue, times 65,536."""
RESIZED = "resized (Lanczos) until the image is covered, cropped at the centre"


class Conversion(NamedTuple):
    """What is done to images, in order, the shape and levels that they have then, and how it is said."""

    steps: tuple[Callable[[Tensor], Tensor], ...]
    shape: Shape
    levels: int
    notes: tuple[str, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """The converted images."""
        for step in self.steps:
            images = step(images)
        return images


def conversion(opened: Opened, options: ImageOptions, size: tuple[int, int] | None) -> Conversion:
    """The steps that bring images to a size, to grey and to a number of levels; each only where it changes something."""
    name, (height, width, channels), levels = opened.name, opened.shape, opened.levels
    steps: list[Callable[[Tensor], Tensor]] = []
    notes: list[str] = []
    if size is not None and size != (height, width):
        if levels != BYTE_LEVELS or opened.binary is not None or channels == 2:
            raise FormersError(
                f"{name} has {height} x {width} images of {levels} levels and {channels} channels, which cannot be resized to "
                f"{size[0]} x {size[1]}: leave height and width out."
            )
        height, width = size
        steps.append(lambda images: resized(images, (height, width)))
        notes.append(f"{RESIZED} ({height} x {width})")
    if options.grey and channels > 1:
        if channels != 3:
            raise FormersError(f"grey=true needs 3 channels, and {name} has {channels}: leave it out, or give RGB images.")
        channels = 1
        steps.append(to_grey)
        notes.append("colour converted to grey (ITU-R 601 luma)")
    if options.levels is not None and options.levels != levels:
        own, wanted = levels, options.levels
        if wanted > own:
            raise FormersError(f"levels={wanted} is more than the {own} levels of {name}: give at most {own}, or leave it out.")
        steps.append(lambda images: to_levels(images, own, wanted))
        notes.append(f"{wanted} levels: floor(v * {wanted} / {own})")
        levels = wanted
    return Conversion(tuple(steps), (height, width, channels), levels, tuple(notes))


def to_grey(images: Tensor) -> Tensor:
    """The luma uint8 (n, height, width, 1) of RGB images uint8 (n, height, width, 3)."""
    red, green, blue = images.to(torch.int32).unbind(-1)
    weighted = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return ((weighted + (1 << 15)) >> 16).to(torch.uint8)[..., None]


def to_levels(images: Tensor, own: int, levels: int) -> Tensor:
    """Values 0 ... own-1 as values 0 ... levels-1: floor(v * levels / own)."""
    return (images.to(torch.int32) * levels).div(own, rounding_mode="floor").to(torch.uint8)


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """8-bit images (n, height, width, channels) at another size."""
    library = pillow("resizing images")
    found = np.empty((len(images), *size, images.shape[-1]), np.uint8)
    for i, image in enumerate(images.numpy()):
        picture = library.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        found[i] = np.asarray(fitted(picture, size)).reshape(*size, -1)
    return torch.from_numpy(found)
