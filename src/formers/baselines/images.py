"""Codes that a model of images must beat, in bits per dimension (channel value): two tables of counts, and the sizes of image files.

Marginal: every position (row, column, channel) has its own distribution,

    P(v | position) = (count(v, position) + a) / (n + a levels)

with the a that gives the training images the highest likelihood when each is left out once. Context: a value given its left and upper
neighbour of the same channel, each in at most 32 steps, interpolated with shorter contexts as Witten and Bell (1991) do,

    P(v | h) = (count(h v) + T(h) P(v | h')) / (count(h) + T(h))         h = (left, upper), then (left), then none

where T(h) is the number of different values seen after h, and no context backs off to 1 / levels. Outside the image the neighbour is a
separate step.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError
from formers.data.images import ImageSet

STEPS = 32
ALPHAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FILES = 1_000
"""Number of images, from the first, that are written as files."""
CHUNK = 1_000
Counts = NDArray[np.float64]


def image_baselines(train: ImageSet | Tensor, held: ImageSet | Tensor, levels: int) -> dict[str, float]:
    """The bits per dimension of held-out images under each code; those of files only where Pillow is installed."""
    known, wanted = (given.images if isinstance(given, ImageSet) else given for given in (train, held))
    found = {
        "marginal_bits_per_dimension": marginal_bits(known, wanted, levels),
        "context_bits_per_dimension": context_bits(known, wanted, levels),
    }
    try:
        import PIL  # noqa: F401
    except ImportError:
        return found
    return {
        **found,
        "png_bits_per_dimension": png_bits(wanted, levels),
        "webp_bits_per_dimension": webp_bits(wanted, levels),
    }


def marginal_bits(train: Tensor, held: Tensor, levels: int) -> float:
    """Bits per dimension of images (n, height, width, channels) under the distribution of each position."""
    _check(levels, train, held)
    size = train[0].numel()
    offsets = np.arange(size) * levels
    counts = sum((np.bincount((rows + offsets).ravel(), minlength=size * levels) for rows in _rows(train)), np.zeros(size * levels))
    n = len(train)
    values, times = np.unique(counts[counts > 0], return_counts=True)
    alpha = max(ALPHAS, key=lambda a: float((times * values * np.log((values - 1 + a) / (n - 1 + a * levels))).sum()))
    cost = -np.log2((counts + alpha) / (n + alpha * levels))
    return sum(float(cost[rows + offsets].sum()) for rows in _rows(held)) / held.numel()


def context_bits(train: Tensor, held: Tensor, levels: int) -> float:
    """Bits per dimension of images (n, height, width, channels), each value given its left and upper neighbour."""
    _check(levels, train, held)
    steps = min(STEPS, levels) + 1
    counts = np.zeros(steps * steps * levels)
    for values, contexts in _neighbours(train, levels):
        counts += np.bincount(contexts * levels + values, minlength=len(counts))
    table = counts.reshape(steps, steps, levels)  # left, upper, value
    p = _witten_bell(table.sum((0, 1)), np.full(levels, 1 / levels))
    p = _witten_bell(table.sum(1), p)
    p = _witten_bell(table, p[:, None])
    cost = -np.log2(p).ravel()
    return sum(float(cost[contexts * levels + values].sum()) for values, contexts in _neighbours(held, levels)) / held.numel()


def png_bits(held: Tensor, levels: int) -> float:
    """Bits per dimension of PNG files, headers included: the mean of the first 1,000 images. Two levels of grey take one bit a pixel."""
    return _file_bits(held, levels, "PNG", {"optimize": True})


def webp_bits(held: Tensor, levels: int) -> float:
    """Bits per dimension of lossless WebP files, headers included: the mean of the first 1,000 images."""
    # The smallest files of MNIST and CIFAR-10: the exhaustive search helps grey images, and makes those of small colour images larger.
    method = 6 if held.shape[-1] == 1 else 3
    return _file_bits(held, levels, "WEBP", {"lossless": True, "quality": 100, "method": method, "exact": True})


def _witten_bell(counts: Counts, shorter: Counts) -> Counts:
    """P(v | h) from counts (..., levels) and the distributions of the shorter context, which broadcast."""
    kinds = (counts > 0).sum(-1, keepdims=True)
    total = counts.sum(-1, keepdims=True)
    return np.where(total > 0, (counts + kinds * shorter) / np.maximum(total + kinds, 1), shorter)


def _rows(images: Tensor) -> Iterator[NDArray[np.int64]]:
    """Some images at a time, (n, dimensions)."""
    for some in torch.split(images, CHUNK):
        yield some.flatten(1).numpy().astype(np.int64)


def _neighbours(images: Tensor, levels: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The values of some images at a time, and the number of each one's context."""
    steps = min(STEPS, levels)
    for some in torch.split(images, CHUNK):
        coarse = (some.int() * steps).div(levels, rounding_mode="floor")
        left = torch.full_like(coarse, steps)
        left[:, :, 1:] = coarse[:, :, :-1]
        upper = torch.full_like(coarse, steps)
        upper[:, 1:] = coarse[:, :-1]
        yield some.flatten().numpy().astype(np.int64), (left * (steps + 1) + upper).flatten().numpy().astype(np.int64)


def _check(levels: int, *images: Tensor) -> None:
    for some in images:
        if len(some) == 0:
            raise FormersError("there is no image to compute a baseline from: give at least one.")
        if int(some.max()) >= levels:
            raise FormersError(f"an image holds the value {int(some.max())}, which is none of {levels} levels: draw binary images first.")


def _file_bits(held: Tensor, levels: int, form: str, options: dict[str, bool | int]) -> float:
    from PIL import Image

    _check(levels, held)
    channels = held.shape[-1]
    total = 0
    for image in held[:FILES].numpy():
        if channels == 1 and levels == 2:
            picture = Image.fromarray(image[..., 0] * np.uint8(255)).convert("1")
        else:
            picture = Image.fromarray(image[..., 0] if channels == 1 else image)
        file = io.BytesIO()
        picture.save(file, form, **options)
        total += 8 * len(file.getvalue())
    return total / (len(held[:FILES]) * math.prod(held.shape[1:]))
