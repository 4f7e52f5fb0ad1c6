"""The training image nearest to each sample, so that copying is seen.

d(x, y) = |x - y| / (levels - 1)        the Euclidean distance over all channel values, scaled to [0, 1]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError

CHUNK = 2048
"""Training images that are compared at a time."""


class Nearest(NamedTuple):
    """For each sample the number of its nearest training image, int64 (samples,), and the distance to it, float64 (samples,)."""

    place: Tensor
    distance: Tensor


def nearest_images(samples: Tensor, training: Tensor, levels: int, chunk: int = CHUNK) -> Nearest:
    """The nearest of the training images (m, height, width, channels) to each sample (n, height, width, channels), all of integers.

    Of several at the same distance it is the first. A copy has the distance 0 exactly.
    """
    if samples.shape[1:] != training.shape[1:] or not len(samples) or not len(training):
        raise FormersError(
            f"samples of shape {tuple(samples.shape)} cannot be compared with training images of shape {tuple(training.shape)}: "
            "give images of one size, at least one of each."
        )
    # Integers in float64: squares and sums are exact.
    x = samples.flatten(1).double()
    own = x.square().sum(dim=1)
    best = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    index = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for start in range(0, len(training), chunk):
        y = training[start : start + chunk].to(x.device).flatten(1).double()
        squares = own[:, None] + y.square().sum(dim=1) - 2 * (x @ y.T)
        found, place = squares.min(dim=1)
        index = torch.where(found < best, start + place, index)
        best = torch.minimum(best, found)
    return Nearest(index.cpu(), best.sqrt().cpu() / (levels - 1))
