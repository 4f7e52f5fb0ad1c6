"""A discretised mixture of logistics over the channels of a pixel (PixelCNN++, Salimans et al., 2017), with exact bin probabilities.

Level l of n is the value x_l = 2l/(n-1) - 1 in [-1, 1], in a bin of half-width e = 1/(n-1). For component k and channel c:

m_kc = mean_kc + sum_{j<c} tanh(coefficient_kcj) x_j        earlier channels shift the mean         E77
a = (x + e - m)/s,  b = (x - e - m)/s        s = exp(max(log scale, -7))
log mass = log sigmoid(a) + log sigmoid(-b) + log(1 - exp(-(a - b)))                                    E78
         = log sigmoid(a) for the first level, log sigmoid(-b) for the last: the tails belong to them

log p(pixel) = logsumexp_k (log weight_k + sum_c log mass_kc)

The masses of all levels sum to one: the inner ones are sigmoid(a) - sigmoid(b), computed without cancellation.
(The published code computes that difference and, if it is below 1e-5, uses the density at the centre of the bin instead.)

A pixel has K (1 + 2C + C(C-1)/2) parameters, in tensor2tensor's layout: K logits, then means, log scales and coefficients as (K, C),
(K, C) and (K, C(C-1)/2). Coefficients are ordered by channel, then by earlier channel: (1,0), (2,0), (2,1), ...
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.core import FormersError, nearest

FLOOR = -7.0
"""The smallest log scale."""
NARROW = -14.0
"""If log w is below this, log(1 - exp(-w)) equals log w - w/2 up to 1e-13."""


def numbers(mixtures: int, channels: int) -> int:
    """The number of parameters per pixel."""
    return mixtures * (1 + 2 * channels + channels * (channels - 1) // 2)


class Logistics(NamedTuple):
    """The parameters of mixtures (...) of K components over C channels."""

    logits: Tensor
    """(..., K)"""
    means: Tensor
    """(..., K, C)"""
    log_scales: Tensor
    """(..., K, C)"""
    coefficients: Tensor
    """(..., K, C(C-1)/2), between -1 and 1."""

    @classmethod
    def of(cls, given: Tensor, mixtures: int, channels: int, temperature: float = 1.0) -> Logistics:
        """The mixtures with the parameters (..., K (1 + 2C + C(C-1)/2)).

        A temperature divides the logits of the components and multiplies the scales.
        """
        pairs = channels * (channels - 1) // 2
        logits, means, scales, coefficients = torch.split(given, [mixtures * n for n in (1, channels, channels, pairs)], dim=-1)
        scales = _apart(scales, mixtures).clamp(min=FLOOR)
        if temperature != 1.0:
            logits, scales = logits / temperature, scales + torch.as_tensor(temperature, dtype=scales.dtype).log()
        return cls(logits, _apart(means, mixtures), scales, _apart(coefficients, mixtures).tanh())

    def mean(self, channel: int, before: Tensor) -> Tensor:
        """The mean (..., K) of a channel, given the values (..., >= channel) of earlier channels."""
        first = channel * (channel - 1) // 2
        moved = self.coefficients[..., first : first + channel] * before[..., None, :channel]
        return self.means[..., channel] + moved.sum(dim=-1)  # E77

    def log_masses(self, levels: Tensor, count: int) -> Tensor:
        """log mass (..., K, C) of integer levels (..., C), out of `count` levels."""
        x = value(levels, count, self.means.dtype)
        channels = levels.shape[-1]
        means = torch.stack([self.mean(c, x) for c in range(channels)], dim=-1)
        return log_mass(levels[..., None, :], means, self.log_scales[..., :channels], count)

    def nats(self, levels: Tensor, count: int) -> Tensor:
        """-log p (...) of whole pixels (..., C) of integer levels."""
        each = self.logits.log_softmax(dim=-1) + self.log_masses(levels, count).sum(dim=-1)
        return -each.logsumexp(dim=-1)

    def conditional(self, before: Tensor, count: int) -> Tensor:
        """log p (..., count) of every level of the next channel, given the integer levels (..., c) of the earlier channels."""
        channel = before.shape[-1]
        weights = self.logits.log_softmax(dim=-1)
        x = value(before, count, self.means.dtype)
        if channel:
            weights = (weights + self.log_masses(before, count).sum(dim=-1)).log_softmax(dim=-1)
        every = torch.arange(count, device=self.means.device)
        masses = log_mass(every, self.mean(channel, x)[..., None], self.log_scales[..., channel, None], count)  # (..., K, count)
        return (weights[..., None] + masses).logsumexp(dim=-2)


def _apart(given: Tensor, mixtures: int) -> Tensor:
    """x (..., K n) as (..., K, n)."""
    return given.reshape(*given.shape[:-1], mixtures, given.shape[-1] // mixtures)


def value(levels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The values in [-1, 1] of integer levels."""
    return levels.to(dtype) * (2.0 / (count - 1)) - 1.0


def log_mass(levels: Tensor, mean: Tensor, log_scale: Tensor, count: int) -> Tensor:
    """The log probability of the bins of integer levels, out of `count`, under a logistic distribution."""
    x, half = value(levels, count, mean.dtype), 1.0 / (count - 1)
    rate = (-log_scale).exp()
    a, b = (x + half - mean) * rate, (x - half - mean) * rate
    width = (2.0 * half) * rate
    above = torch.where(levels == 0, 0.0, F.logsigmoid(-b))
    below = torch.where(levels == count - 1, 0.0, F.logsigmoid(a))
    inside = torch.where((levels == 0) | (levels == count - 1), 0.0, _log_share(width, math.log(2.0 * half) - log_scale))
    return below + above + inside  # E78


def _log_share(width: Tensor, log_width: Tensor) -> Tensor:
    """log(1 - exp(-width)), also if the scale is so large that the width of a bin underflows to 0."""
    narrow = log_width < NARROW
    wide = (-torch.expm1(-torch.where(narrow, 1.0, width))).log()
    return torch.where(narrow, log_width - width / 2, wide)


LAYOUTS = ("tensor2tensor", "pixelcnn++", "components-last")


def from_layout(weight: Tensor, layout: str, mixtures: int, channels: int = 3) -> Tensor:
    """The rows of an output matrix or bias (numbers, ...) in tensor2tensor's layout, from another implementation's layout.

    tensor2tensor: unchanged. pixelcnn++: K logits, then for each channel K means, K log scales and K coefficients (3 channels only).
    components-last: split as in tensor2tensor, with each part as (C, K) instead of (K, C).
    """
    if layout not in LAYOUTS:
        raise FormersError(f"layout={layout!r} is not a layout of mixture parameters: {nearest(layout, LAYOUTS)}")
    pairs = channels * (channels - 1) // 2
    if len(weight) != numbers(mixtures, channels):
        raise FormersError(
            f"the weight has {len(weight)} rows, but {mixtures} mixtures of {channels} channels have {numbers(mixtures, channels)} "
            "parameters: give its numbers of mixtures and channels."
        )
    if layout == "tensor2tensor":
        return weight
    if layout == "pixelcnn++":
        if channels != 3:
            raise FormersError(f"the layout pixelcnn++ has 3 channels, not {channels}: use tensor2tensor or components-last.")
        logits, rest = weight[:mixtures], torch.unflatten(weight[mixtures:], 0, (channels, 3, mixtures))
        parts = [rest[:, i].transpose(0, 1).flatten(0, 1) for i in range(3)]
        return torch.cat([logits, *parts])
    logits, *others = torch.split(weight, [mixtures * n for n in (1, channels, channels, pairs)])
    return torch.cat([logits, *(torch.unflatten(other, 0, (-1, mixtures)).transpose(0, 1).flatten(0, 1) for other in others if len(other))])
