"""Generalised advantage estimation (Schulman et al., 2016), with time limits told apart from ends.

d_t = r_t + gamma (1 - terminated_t) V'_t - V_t                                    V'_t the value of what was seen behind step t      E166
A_t = d_t + gamma lambda (1 - done_t) A_{t+1}                                      done = terminated or cut off by a time limit       E167

An episode that was cut off by a time limit would have gone on: V'_t is then the value of its final observation, with all that its episode
has in memory. At the last step of a segment V'_t is the value of the observation behind it. Values are fitted to the returns A + V.
"""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, done: Tensor, gamma: float, trace: float
) -> Tensor:
    """A (batch, time) of steps (batch, time); trace is lambda."""
    delta = rewards + gamma * next_values * (~terminated) - values  # E166
    keep = gamma * trace * (~done).to(delta.dtype)
    found, after = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        after = delta[:, t] + keep[:, t] * after  # E167
        found[:, t] = after
    return found
