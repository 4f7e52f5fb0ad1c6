"""PopArt (van Hasselt et al., 2016): values are learnt on a scale of their own, and stay what they are when the scale changes.

mu <- (1 - b) mu + b mean(R),  nu <- (1 - b) nu + b mean(R^2),  sigma = sqrt(nu - mu^2)                                               E165
w' = w sigma / sigma',  c' = (sigma c + mu - mu') / sigma'            so that sigma' (w' h + c') + mu' = sigma (w h + c) + mu
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

SMALLEST, LARGEST = 1e-4, 1e6
"""Bounds of sigma, as in the paper."""


class Scale(NamedTuple):
    """The mean and the mean square of returns so far."""

    mean: float = 0.0
    square: float = 1.0

    @property
    def deviation(self) -> float:
        """sigma."""
        return float(min(max(max(self.square - self.mean**2, 0.0) ** 0.5, SMALLEST), LARGEST))

    def seen(self, returns: Tensor, rate: float) -> Scale:
        """The scale after returns of any shape, of which it takes the share `rate`."""
        wide = returns.double()
        mean = (1 - rate) * self.mean + rate * wide.mean().item()
        return Scale(mean, (1 - rate) * self.square + rate * wide.square().mean().item())  # E165

    def normal(self, values: Tensor) -> Tensor:
        """Values on the scale of the head."""
        return (values - self.mean) / self.deviation

    def real(self, values: Tensor) -> Tensor:
        """Values of the head on the scale of rewards."""
        return values * self.deviation + self.mean


@torch.no_grad()
def rescale(out: nn.Linear, old: Scale, new: Scale) -> None:
    """Changes the last linear map (1, dim) of a value so that old.real of what it gave is new.real of what it gives."""
    ratio = old.deviation / new.deviation
    out.weight.mul_(ratio)
    out.bias.mul_(ratio).add_((old.mean - new.mean) / new.deviation)
