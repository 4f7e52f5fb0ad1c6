"""Recurrent rows of different lengths without packing: torch's kernel over the padded rows, and nothing is read on the host.

Real tokens come first in every row, so the forward direction never sees padding before its last real token. The backward direction is a
forward one over the row with its n real tokens reversed, x'_t = x_{n-1-t}, whose outputs are reversed back.

The state of a row is that after its last real token. h is the output there. The kernel does not return c of an LSTM at every token; so
padding keeps it: an input flag, 1 at padding, with the weight -B for the input gate and B for the forget gate, gives

i = sigmoid(... - B) = 0      f = sigmoid(... + B) = 1      c_t = f c_{t-1} + i g = c_{t-1}

exactly, with gradients of exactly 0 into the gates, and c of the last token of the padded row is the one wanted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from formers.recurrent.cells import Cell, States

KERNELS: dict[Cell, Callable[..., tuple[Tensor, ...]]] = {"tanh": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
SATURATED = 1e4
"""B: sigmoid(-B) is 0 in every type, beside any drive of a gate, and B is a number of float16."""


def fused(cell: Cell, x: Tensor, states: States, flat: list[Tensor], both: bool) -> tuple[Tensor, ...]:
    """torch's kernel: y (batch, length, dim) for x (batch, length, inputs), then the final states (directions, batch, dim)."""
    # cuDNN saves tensors for the backward pass only in training mode.
    rest = (True, 1, 0.0, torch.is_grad_enabled(), both, True)  # biases, layers, dropout, training, directions, batch first
    return KERNELS[cell](x, states if cell == "lstm" else states[0], flat, *rest)


def run_padded(cell: Cell, x: Tensor, valid: Tensor, states: States, flat: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The outputs for x (batch, length, inputs), and the states (directions, batch, dim) after the real tokens of each row.

    valid (batch, length) marks the real tokens, which come first. A row without any keeps its states. Outputs at padding have no meaning.
    """
    count = valid.sum(dim=1)
    if cell == "lstm":
        x = torch.cat([x, valid.logical_not()[..., None].to(x.dtype)], dim=2)
    sides, ends = [], []
    for way in range(len(flat) // 4):
        own, before = flat[4 * way : 4 * way + 4], tuple(s[way] for s in states)
        if cell == "lstm":
            own = [torch.cat([own[0], _flag_weights(own[0])], dim=1), *own[1:]]
        y, *left = fused(cell, reversed_rows(x, count) if way else x, tuple(s[None] for s in before), own, both=False)
        last = (count - 1).clamp(min=0)[:, None, None].expand(-1, 1, y.shape[2])
        h = torch.where((count > 0)[:, None], y.gather(1, last)[:, 0], before[0])
        sides.append(reversed_rows(y, count) if way else y)
        ends.append((h, *(s[0] for s in left[1:])))
    return torch.cat(sides, dim=2) if len(sides) > 1 else sides[0], [torch.stack(s) for s in zip(*ends, strict=True)]


def reversed_rows(x: Tensor, count: Tensor) -> Tensor:
    """x (batch, length, dim) with the first count (batch,) tokens of each row in the opposite order; the others stay."""
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < count[:, None], count[:, None] - 1 - t, t)
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


def _flag_weights(weight: Tensor) -> Tensor:
    """The weights (gates * dim, 1) of the flag: -B for the input gate, B for the forget gate and 0 for the others."""
    dim = len(weight) // 4
    return torch.cat([weight.new_full((dim, 1), value) for value in (-SATURATED, SATURATED, 0.0, 0.0)])
