"""Recurrent cells: the state after one step, from an input x and the previous state.

h' = tanh(W x + b + U h + d)                                     tanh (Elman, 1990)                      E140

r = sigmoid(W_r x + b_r + U_r h + d_r)                           GRU (Cho et al., 2014), as in torch and cuDNN:
z = sigmoid(W_z x + b_z + U_z h + d_z)                           the reset gate is applied after U_n
n = tanh(W_n x + b_n + r * (U_n h + d_n))
h' = (1 - z) * n + z * h                                                                                 E141

i, f, o = sigmoid(W x + b + U h + d) with separate weights        LSTM (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)
g = tanh(W_g x + b_g + U_g h + d_g)
c' = f * c + i * g        h' = o * tanh(c')                                                              E142

The matrices of a cell's gates are stacked, in torch's order (r, z, n; i, f, g, o), and so are their biases; weights have torch's names.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError

Cell = Literal["tanh", "gru", "lstm"]
States = tuple[Tensor, ...]
"""(h,), or (h, c) for an LSTM, each (batch, dim)."""
GATES: dict[Cell, int] = {"tanh": 1, "gru": 3, "lstm": 4}
STATES: dict[Cell, int] = {"tanh": 1, "gru": 1, "lstm": 2}
"""The number of state vectors: h, and for an LSTM also c."""
FORGET = 1.0
"""The initial bias of an LSTM's forget gate, so that it initially forgets little (Gers et al., 2000)."""


class RecurrentWeights(nn.Module):
    """The weights of a cell of width dim for inputs of another width, for one or two directions; state dicts are those of torch.nn.LSTM."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, cell: Cell, inputs: int, dim: int, directions: int = 1) -> None:
        super().__init__()
        self.cell, self.dim, self.directions = cell, dim, directions
        gates = GATES[cell] * dim
        shapes = {"weight_ih": (gates, inputs), "weight_hh": (gates, dim), "bias_ih": (gates,), "bias_hh": (gates,)}
        for ending in ("_l0", "_l0_reverse")[:directions]:
            for name, shape in shapes.items():
                self.register_parameter(name + ending, nn.Parameter(torch.empty(shape)))
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """torch's initialisation: all uniform within 1/sqrt(dim); but the forget gates of an LSTM start open."""
        bound = self.dim**-0.5
        for name, weight in self.named_parameters():
            nn.init.uniform_(weight, -bound, bound)
            if self.cell == "lstm" and name.startswith("bias"):
                weight[self.dim : 2 * self.dim] = FORGET if name.startswith("bias_ih") else 0.0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.weight_hh_l0.dtype

    def flat(self, dtype: torch.dtype) -> list[Tensor]:
        """All weights in torch's order, in a dtype."""
        return [weight.to(dtype) for weight in self._parameters.values() if weight is not None]

    def zeros(self, x: Tensor) -> States:
        """The state before the first of the tokens x (batch, ...)."""
        zero = x.new_zeros(len(x), self.dim * self.directions)
        return (zero, zero) if self.cell == "lstm" else (zero,)


def advance(cell: Cell, drive: Tensor, states: States, weight: Tensor, bias: Tensor | None) -> States:
    """The states after a step; drive (batch, gates * dim) is W x + b, weight U and bias d."""
    h = states[0]
    back = F.linear(h, weight, bias)
    if cell == "tanh":
        return (torch.tanh(drive + back),)  # E140
    if cell == "gru":
        (reset, update, new), (reset_h, update_h, new_h) = drive.chunk(3, dim=-1), back.chunk(3, dim=-1)
        z = torch.sigmoid(update + update_h)
        n = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
        return (n + z * (h - n),)  # E141
    i, f, g, o = (drive + back).chunk(4, dim=-1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c  # E142


def check_width(states: States, cell: Cell, dim: int) -> None:
    """Raises FormersError for the states of another cell."""
    if len(states) != STATES[cell] or states[0].shape[1] != dim:
        raise FormersError("the state has another cell or width than the model: another model made it; start from initial_state(batch).")
