"""Weight initialisation.

W ~ U(-a, a)         a = g sqrt(6 / (d_in + d_out))        xavier (Glorot and Bengio, 2010)
W ~ N(0, s^2)        s = g sqrt(1 / (8 d_in))              fan-in: the Sparse Transformer's code (Child et al., 2019)     E87

The gain g is 1, except for the output projections of sublayers, where the residual chooses it: 1/sqrt(2N) for N pre-norm blocks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import init

Law = Literal["xavier", "fan-in"]


def draw(weight: Tensor, law: Law = "xavier", gain: float = 1.0) -> None:
    """Initialises a weight (d_out, d_in) from a distribution, times a gain."""
    if law == "xavier":
        init.xavier_uniform_(weight, gain)
    else:
        init.normal_(weight, std=gain * (0.125 / weight.shape[1]) ** 0.5)  # E87


def draw_filters(weight: Tensor, law: Law = "xavier") -> None:
    """Initialises depthwise filters (channels, width): both d_in and d_out are the width."""
    if law == "xavier":
        limit = (3.0 / weight.shape[1]) ** 0.5
        init.uniform_(weight, -limit, limit)
    else:
        draw(weight, law)
