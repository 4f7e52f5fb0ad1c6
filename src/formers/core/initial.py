"""The laws by which weights start.

W ~ U(-a, a)         a = g sqrt(6 / (d_in + d_out))        xavier (Glorot and Bengio, 2010)
W ~ N(0, s^2)        s = g sqrt(1 / (8 d_in))              fan-in: the Sparse Transformer's code (Child et al., 2019)     E87

g is 1, and for the output projections of sublayers what the residual chooses by the depth: 1/sqrt(2N) in N blocks of pre-norm.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import init

Law = Literal["xavier", "fan-in"]


def draw(weight: Tensor, law: Law = "xavier", gain: float = 1.0) -> None:
    """Fills a weight (d_out, d_in) by a law, times a gain."""
    if law == "xavier":
        init.xavier_uniform_(weight, gain)
    else:
        init.normal_(weight, std=gain * (0.125 / weight.shape[1]) ** 0.5)  # E87


def draw_filters(weight: Tensor, law: Law = "xavier") -> None:
    """Fills filters (channels, width), each of one channel alone, by a law: both d_in and d_out are the width."""
    if law == "xavier":
        limit = (3.0 / weight.shape[1]) ** 0.5
        init.uniform_(weight, -limit, limit)
    else:
        draw(weight, law)
