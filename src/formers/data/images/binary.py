"""Binary images: each pixel is 1 with probability v / 255, where v is its 8-bit value (Salakhutdinov and Murray, 2008).

In training the pixels are drawn again at each step. In evaluation the draw is a function of the part, the image's index in it and the
pixel, so that it does not depend on the batch size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from formers.core.random import derive_seed, hash_integers
from formers.data.images.values import ImageData, ImageSet

THRESHOLD = 128
CHUNK = 4_096
"""Images that are drawn at once; the random numbers take eight bytes a pixel."""


def draw_binary(images: Tensor, generator: torch.Generator) -> Tensor:
    """Bernoulli(v / 255) of 8-bit images: uint8 0 or 1, of the same shape."""
    drawn = torch.rand(images.shape, generator=generator, device=generator.device).to(images.device)
    return (drawn < images / 255).to(torch.uint8)


def fixed_binary(images: Tensor, indices: Tensor, part: str) -> Tensor:
    """Bernoulli(v / 255) of the images with these indices (n,) in a part: the same draw for the same index and part, always."""
    rows = images.flatten(1)
    cells = indices.cpu().to(torch.int64)[:, None] * rows.shape[1] + torch.arange(rows.shape[1])
    # Mixed twice: parts would otherwise read the same sequence of numbers at different places.
    bits = hash_integers((hash_integers(cells.numpy()) ^ np.uint64(derive_seed(0, "binary", part))).view(np.int64))
    drawn = torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53).to(images.device)
    return (drawn < rows.double() / 255).to(torch.uint8).view(images.shape)


def threshold_binary(images: Tensor) -> Tensor:
    """1 where an 8-bit value is at least 128: uint8, of the same shape."""
    return (images >= THRESHOLD).to(torch.uint8)


def evaluated(data: ImageData, part: str) -> ImageSet:
    """A part as evaluation sees it, with values below `data.levels`: images that are drawn again in training are drawn once here."""
    found = data.parts[part]
    if data.binary != "dynamic":
        return found
    numbers = torch.arange(len(found.images))
    drawn = [fixed_binary(found.images[some], some, part) for some in torch.split(numbers, CHUNK)]
    return found._replace(images=torch.cat(drawn))
