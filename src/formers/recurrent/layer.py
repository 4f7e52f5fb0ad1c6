"""A recurrent layer instead of attention: a token depends on the past only through a state of fixed size (Elman, 1990).

s_t = cell(x_t, s_{t-1})      y_t = h_t            the cells are in cells.py
y_t = [h_t forward; h_t backward]                  direction "both" (Schuster and Paliwal, 1997): dim/2 each

There is no output projection: with the residual Bare, a stack of these layers equals torch's module with several layers. Whole rows are
one call of torch's kernel. Padded rows end, and the backward direction begins, at their last real token: on the host by packed rows,
off the host, where packing would wait for the lengths, by recurrent/padded.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from formers.attention.attend import Verdict
from formers.attention.multihead import Attention
from formers.core import Context, RecurrentMemory, Sizes
from formers.core.devices import on_host
from formers.core.precision import without_autocast
from formers.core.state import expect
from formers.patterns import Causal, Full, Pattern
from formers.recurrent.cells import STATES, Cell, RecurrentWeights, States, advance, check_width
from formers.recurrent.final_states import FinalStates
from formers.recurrent.padded import KERNELS, fused, run_padded
from formers.score.base import ScoreModule


class Recurrent(Attention):
    """A recurrent cell that runs forward over rows, or in both directions."""

    cell: Cell = "lstm"
    direction: Literal["forward", "both"] = "forward"

    @property
    def carries(self) -> bool:
        return True

    @property
    def allowed_patterns(self) -> tuple[type[Pattern], ...]:
        return (Full,) if self.direction == "both" else (Causal,)

    def final_widths(self, sizes: Sizes) -> tuple[int, ...]:
        return (sizes.dim,) * STATES[self.cell]

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return RecurrentLayer(sizes.dim, self)


class RecurrentLayer(nn.Module):
    """One recurrent layer; its state is that of torch."""

    def __init__(self, dim: int, part: Recurrent) -> None:
        super().__init__()
        directions = 2 if part.direction == "both" else 1
        self.cell, self.directions, self.dim = part.cell, directions, dim
        self.recurrence = RecurrentWeights(part.cell, dim, dim // directions, directions)

    def forward(self, x: Tensor, context: Context, past: RecurrentMemory | None, step: int) -> tuple[Tensor, RecurrentMemory | None]:
        """y (batch, length, dim) for x (batch, length, dim), and the state after each row's last real token."""
        before = self.recurrence.zeros(x) if past is None else past_states(past, self.cell, self.dim)
        wanted = context.keep or FinalStates in context.channels
        # Padding comes after the real tokens: the forward direction never sees it, and only the final state depends on the row's end.
        valid = context.valid if wanted or self.directions == 2 else None
        if context.episodes is None:
            y, states = run(self.recurrence, x, before, valid)
        else:
            y, states = by_episode(self.recurrence, x, before, context.episodes.begins)
        if context.watch is not None:
            rows = "the whole row" if valid is None else "packed rows" if on_host(x) else "padded rows"
            about = f"torch's kernel over {rows}"
            context.watch.note("attention executors", step, lambda: (Verdict(self.cell, True, about, None),))
        final: FinalStates | None = context.channels.get(FinalStates)
        if final is not None:
            final.append(states)
        return y, RecurrentMemory.of(states) if context.keep else None


def past_states(past: RecurrentMemory, cell: Cell, dim: int) -> States:
    """The initial states of a continued row."""
    states = expect(RecurrentMemory, past).states
    check_width(states, cell, dim)
    return states


def run(weights: RecurrentWeights, x: Tensor, states: States, valid: Tensor | None) -> tuple[Tensor, States]:
    """The outputs of a cell for rows x (batch, length, dim), beginning with `states`, and the states after their real tokens."""
    if not on_host(x):
        return _rows(weights, x, states, valid)
    return in_float32(weights, x, states, lambda x, states: _rows(weights, x, states, valid))


def by_episode(weights: RecurrentWeights, x: Tensor, states: States, begins: Tensor) -> tuple[Tensor, States]:
    """The outputs of a cell for rows x (batch, length, dim) with episodes that begin where begins (batch, length) is True, with state 0.

    Every episode of every row becomes a separate row: the first continues the row's state, and the last returns the row's new state.
    Off the host this waits once, for `begins`: a loop over tokens would take longer.
    """
    batch, length = begins.shape
    if length == 1:
        return run(weights, x, tuple(s.masked_fill(begins, 0) for s in states), None)
    begins = begins.cpu()
    heads = begins.clone()
    heads[:, 0] = True
    row, start = heads.nonzero(as_tuple=True)
    stop = torch.cat([torch.where(row[1:] == row[:-1], start[1:], length), start.new_full((1,), length)])
    places = torch.arange(int((stop - start).max()))
    valid = places < (stop - start)[:, None]
    index = (row * length + start)[:, None] + places
    goes_on = (start == 0) & ~begins[row, start]
    held, ends = valid.flatten().nonzero()[:, 0], (stop == length).nonzero()[:, 0]
    to = index[valid].to(x.device)
    row, index, valid, goes_on, held, ends = (each.to(x.device) for each in (row, index, valid, goes_on, held, ends))
    pieces = x.flatten(0, 1)[index.clamp(max=batch * length - 1)].masked_fill(~valid[..., None], 0.0)
    y, left = run(weights, pieces, tuple(s[row].masked_fill(~goes_on[:, None], 0) for s in states), valid)
    whole = y.new_zeros(batch * length, y.shape[2]).index_copy(0, to, y.flatten(0, 1).index_select(0, held))
    return whole.view(batch, length, -1), tuple(s.index_select(0, ends) for s in left)


def in_float32(
    weights: RecurrentWeights, x: Tensor, states: States, compute: Callable[[Tensor, States], tuple[Tensor, States]]
) -> tuple[Tensor, States]:
    """Calls `compute(x, states)` in at least float32, because a state that is rounded at every token drifts.

    Also, oneDNN's half-precision LSTM crashes on processors that report instructions they do not support.
    """
    kind, wide = x.dtype, torch.promote_types(weights.dtype, torch.float32)
    with without_autocast(x):
        y, states = compute(x.to(wide), tuple(s.to(wide) for s in states))
    return y.to(kind), states


def _rows(weights: RecurrentWeights, x: Tensor, states: States, valid: Tensor | None) -> tuple[Tensor, States]:
    dtype = torch.get_autocast_dtype(x.device.type) if not x.is_meta and torch.is_autocast_enabled(x.device.type) else x.dtype
    flat = weights.flat(dtype)
    by_direction = tuple(torch.stack(s.to(dtype).chunk(weights.directions, dim=1)) for s in states)
    if valid is None or not len(x):
        y, *left = _kernel(weights, x.to(dtype), None, by_direction, flat)
    elif torch.compiler.is_compiling():
        y, left = _unrolled(weights, x.to(dtype), valid, by_direction, flat)
    elif not on_host(x):
        y, left = run_padded(weights.cell, x.to(dtype), valid, by_direction, flat)
    else:
        y, left = _packed(weights, x.to(dtype), valid, by_direction, flat)
    return y, tuple(torch.cat(s.unbind(0), dim=1) for s in left)


def _kernel(weights: RecurrentWeights, x: Tensor, sizes: Tensor | None, states: States, flat: list[Tensor]) -> tuple[Tensor, ...]:
    """torch's kernel; x is (batch, length, dim), or with sizes the data of a packed sequence; states are (directions, batch, dim)."""
    if sizes is None:
        return fused(weights.cell, x, states, flat, weights.directions == 2)
    before = states if weights.cell == "lstm" else states[0]
    rest = (True, 1, 0.0, torch.is_grad_enabled(), weights.directions == 2)  # biases, layers, dropout, training, directions
    return KERNELS[weights.cell](x, sizes, before, flat, *rest)


def _packed(weights: RecurrentWeights, x: Tensor, valid: Tensor, states: States, flat: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The same for rows of different lengths, packed so that padding is not computed; an empty row keeps its state."""
    lengths = valid.sum(dim=1)
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    assert order is not None
    assert back is not None
    y, *left = _kernel(weights, packed.data, packed.batch_sizes, tuple(s.index_select(1, order) for s in states), flat)
    rows, _ = pad_packed_sequence(PackedSequence(y, packed.batch_sizes, order, back), batch_first=True, total_length=x.shape[1])
    some = (lengths > 0)[None, :, None]
    return rows, [torch.where(some, new.index_select(1, back), old) for new, old in zip(left, states, strict=True)]


def _unrolled(weights: RecurrentWeights, x: Tensor, valid: Tensor, states: States, flat: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The same, step by step, for torch.compile, which cannot use packed sequences and unrolls rows anyway."""
    sides, ends = [], []
    for way in range(weights.directions):
        weight, weight_h, bias, bias_h = flat[4 * way : 4 * way + 4]
        drive, current, found = F.linear(x, weight, bias), tuple(s[way] for s in states), [x] * x.shape[1]
        for t in range(x.shape[1]) if way == 0 else reversed(range(x.shape[1])):
            new = advance(weights.cell, drive[:, t], current, weight_h, bias_h)
            current = tuple(torch.where(valid[:, t, None], a, b) for a, b in zip(new, current, strict=True))
            found[t] = current[0]
        sides.append(torch.stack(found, dim=1))
        ends.append(current)
    return torch.cat(sides, dim=2), [torch.stack(s) for s in zip(*ends, strict=True)]
