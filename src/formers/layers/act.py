"""Adaptive Computation Time around a recurrent cell (Graves, 2016; E40-E47): a variable number of steps per token."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Context, FormersError
from formers.core.part import checked
from formers.depth.halting import Act
from formers.layers.base import Entries, Layer, layer_spec
from formers.patterns import Causal
from formers.recurrent import Pondering
from formers.recurrent.act import HaltingLayer
from formers.recurrent.cells import States


class ACT(Layer):
    """A recurrent cell that is applied to each token until it halts.

    ACT(cell)(x) returns y (batch, length, hidden_size) for x (batch, length, input_size - 1).

    The cell must be a module with the integers `input_size` and `hidden_size`, called as cell(input, state) -> state, as torch.nn.RNNCell,
    GRUCell and LSTMCell are.
    - input (rows, input_size) is a token's vector with a flag appended: 1 at the token's first step, 0 at later ones. So a cell for vectors
      of width d has input_size = d + 1.
    - state is h (rows, hidden_size), and with `pair` the tuple (h, c) of two such, which is the default for an LSTMCell. y is the mean h.
    - rows are independent: a call may have fewer rows than the batch, if other rows have halted.

    cell may also be "tanh", "gru" or "lstm", the cells of the members, with `dim` as input and hidden width.

    steps: the largest number of steps per token. epsilon: a token halts when its halting probabilities sum to 1 - epsilon. ponder: the cost
    of a step; ponder times the mean of N + R is added to `losses["ponder"]`. bias: the initial bias of the halting unit. act: "graves", or
    "t2t" for tensor2tensor's variant (E44). The layer is causal and has a state, the cell's.
    """

    def __init__(
        self,
        cell: nn.Module | str,
        dim: int | None = None,
        *,
        steps: int = 10,
        epsilon: float = 0.01,
        ponder: float = 0.01,
        bias: float = 1.0,
        act: Act = "graves",
        pair: bool | None = None,
    ) -> None:
        pair = isinstance(cell, nn.LSTMCell) if pair is None else pair
        kind = cell if isinstance(cell, str) else "lstm" if pair else "gru"
        part = Pondering(cell=kind, steps=steps, epsilon=epsilon, ponder=ponder, bias=bias, act=act)
        if part.act == "none":
            raise FormersError("act='none' never halts: give 'graves' or 't2t'.")
        if isinstance(cell, str):
            if dim is None:
                raise FormersError(f"cell={cell!r} has no width yet: give dim.")
            inputs = width = checked("dim", PositiveInt, dim)
        else:
            inputs, width = _sizes(cell, dim)
        super().__init__(layer_spec(inputs, 1, Causal(), attention=part))
        self.layer = HaltingLayer(width, part, part.act) if isinstance(cell, str) else CellLayer(cell, width, part, part.act)

    def run(self, x: Tensor, context: Context, past: Entries | None) -> tuple[Tensor, Entries]:
        y, entry = self.layer(x, context, None if past is None else past[0], 0)
        return y, (entry,)


class CellLayer(HaltingLayer):
    """The halting layer of `act-rnn` with a recurrent cell that the user supplies as a module."""

    def __init__(self, cell: nn.Module, dim: int, part: Pondering, act: Act) -> None:
        super().__init__(dim, part, act)
        self.recurrence = CellWeights(cell, dim, part.cell == "lstm")  # type: ignore[assignment]

    def drive(self, x: Tensor) -> Tensor:
        return x

    def cell_step(self, drive: Tensor, states: States, n: int) -> States:
        return self.recurrence(torch.cat([drive, drive.new_full((len(drive), 1), float(n == 0))], dim=1), states)


class CellWeights(nn.Module):
    """A user's cell with the interface of RecurrentWeights."""

    def __init__(self, cell: nn.Module, dim: int, pair: bool) -> None:
        super().__init__()
        self.cell, self.dim, self.pair = cell, dim, pair

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next((w.dtype for w in self.parameters()), torch.float32)

    def zeros(self, x: Tensor) -> States:
        """The state before the first of the tokens x (batch, ...)."""
        zero = x.new_zeros(len(x), self.dim)
        return (zero, zero) if self.pair else (zero,)

    def forward(self, x: Tensor, states: States) -> States:
        """The states after a step; raises FormersError if the cell returns something else."""
        new: Any = self.cell(x, states if self.pair else states[0])
        found = tuple(new) if self.pair and isinstance(new, tuple | list) else (new,)
        if len(found) != len(states) or not all(isinstance(s, Tensor) and s.shape == states[0].shape for s in found):
            wanted = f"{'a pair of tensors' if self.pair else 'one tensor'} of shape {tuple(states[0].shape)}"
            shapes = [tuple(s.shape) if isinstance(s, Tensor) else type(s).__name__ for s in found]
            raise FormersError(f"the cell {type(self.cell).__name__} returned {shapes}: return {wanted}, or set pair in ACT.")
        return found


def _sizes(cell: nn.Module, dim: int | None) -> tuple[int, int]:
    """The widths of the tokens and of the state of a cell."""
    inputs, width = getattr(cell, "input_size", None), getattr(cell, "hidden_size", None)
    if not isinstance(cell, nn.Module) or not isinstance(inputs, int) or not isinstance(width, int):
        raise FormersError(
            f"cell is a {type(cell).__name__} without the integers input_size and hidden_size: give a module such as nn.GRUCell."
        )
    if inputs < 2:
        raise FormersError(f"the cell's input_size={inputs} is too small for a vector and the flag: give at least 2.")
    if dim is not None and dim != inputs - 1:
        raise FormersError(f"dim={dim} and the cell's input_size={inputs} disagree: input_size is dim + 1, for the flag; omit dim.")
    return inputs - 1, width
