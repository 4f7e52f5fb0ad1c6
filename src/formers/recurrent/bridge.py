"""The bridge from an encoder to a recurrent decoder: the decoder's initial state, computed once per source.

s^l_0 = tanh(W^l z^l)      c^l_0 = V^l z_c^l       z: the final states of the encoder                               E144

Layer l starts from the encoder's layer l, or from its last if there are fewer; if there are more, from the top ones. z^l is the state
after the last real token; for a bidirectional layer it is [forward; backward], each at its end. The map is always applied, so that
widths and directions may differ. It has no bias, so that the initial state of a row without a source is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from formers.core import Sizes, Source
from formers.core.initial import draw
from formers.core.serialise import serialisable
from formers.recurrent.cells import STATES, Cell

T = TypeVar("T")
Alignment = Literal["none", "additive", "dot", "general"]


@serialisable
@dataclass(frozen=True, eq=False)
class BridgeState:
    """The state of a decoder with attention to a source: its recurrent states, its last output, and the source's keys and values."""

    states: Tensor
    """(batch, layers, 1, dim), for LSTMs (batch, layers, 2, dim): h and c."""
    said: Tensor | None = None
    """y of the last token (batch, dim), if it is fed back."""
    keys: Tensor | None = None
    """(batch, n, dim); None without alignment."""
    values: Tensor | None = None
    """The encoder's outputs (batch, n, source)."""
    valid: Tensor | None = None
    """(batch, n) bool, True = a real token; None if all are."""

    def reset(self, done: Tensor) -> BridgeState:
        """The state with the rows marked in done (batch,) set back to before the source and the first token."""
        states = self.states.masked_fill(done[:, None, None, None], 0)
        said = None if self.said is None else self.said.masked_fill(done[:, None], 0)
        if self.keys is None:
            return replace(self, states=states, said=said)
        seen = torch.ones(self.keys.shape[:2], dtype=torch.bool, device=done.device) if self.valid is None else self.valid
        return replace(self, states=states, said=said, valid=seen & ~done[:, None])

    def map(self, change: Callable[[Tensor], Tensor]) -> BridgeState:
        """The state with `change` applied to each of its tensors, batch first."""
        rest = (None if t is None else change(t) for t in (self.said, self.keys, self.values, self.valid))
        return BridgeState(change(self.states), *rest)

    def usable(self, dtype: torch.dtype) -> BridgeState:
        """The state in a dtype; copied if it was computed in inference mode and a backward pass may need it."""
        copies = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        plain = self.map(lambda t: t.clone()) if copies and self.states.is_inference() else self
        return plain.map(lambda t: t if t.dtype == torch.bool else t.to(dtype))


class Bridge(nn.Module):
    """Computes the initial state of a decoder from a source, and the keys of the source."""

    def __init__(self, sizes: Sizes, cell: Cell, layers: int, alignment: Alignment) -> None:
        super().__init__()
        assert sizes.source is not None
        self.alignment = alignment
        self.shape = (layers, STATES[cell], sizes.dim)
        self.spare = max(0, len(sizes.final_widths) - layers)
        """The number of lowest encoder layers whose final states are not used."""
        self.bridges = nn.ModuleList()
        for layer in range(layers if sizes.final_widths else 0):
            widths = at_most(sizes.final_widths, self.spare + layer)
            own = [nn.Linear(at_most(widths, kind), sizes.dim, bias=False) for kind in range(self.shape[1])]
            self.bridges.append(nn.ModuleList(own))
        self.keys = nn.Linear(sizes.source, sizes.dim, bias=False) if alignment in ("additive", "general") else None
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw(module.weight, sizes.initialisation)

    def forward(self, source: Source) -> BridgeState:
        """The state of a decoder after a source and before the first token."""
        states = self.start(source)
        if self.alignment == "none":
            return BridgeState(states)
        keys = source.hidden if self.keys is None else self.keys(source.hidden)
        return BridgeState(states, None, keys, source.hidden, source.valid)

    def start(self, source: Source) -> Tensor:
        """The initial states (batch, layers, kinds, dim); 0 if the encoder has no final states."""
        if not self.bridges:
            return source.hidden.new_zeros(len(source.hidden), *self.shape)
        states = []
        for layer, bridges in enumerate(self.bridges):
            assert isinstance(bridges, nn.ModuleList)
            final = at_most(source.final, self.spare + layer)
            made = [bridge(at_most(final, kind).to(source.hidden.dtype)) for kind, bridge in enumerate(bridges)]
            # h is bounded, as the output of a cell; c is not.
            states.append(torch.stack([torch.tanh(made[0]), *made[1:]], dim=1))  # E144
        return torch.stack(states, dim=1)


def at_most(values: Sequence[T], i: int) -> T:
    """The i-th value, or the last one if there are fewer."""
    return values[min(i, len(values) - 1)]
