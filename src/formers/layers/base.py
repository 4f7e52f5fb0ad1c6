"""The common code of all layers of this package: the call layer(x, mask, state, losses), padding, positions and states.

A layer is a block of a member with one depth step, built and run by the code of the members (model/block.py): the attention layers have
neither a residual connection nor a feed-forward sublayer; TransformerBlock has both.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formers.attention import Attention, DotProduct
from formers.core import Context, FormersError, State
from formers.core.part import checked
from formers.core.state import LayerState
from formers.depth import Stacked
from formers.feedforward import FeedForward, NoFeedForward
from formers.heads import NoHead
from formers.memory import Memory, NoMemory, Recurrence
from formers.model.block import Block
from formers.model.check import check
from formers.model.max_length import MaxLength, check_rows
from formers.model.model import usable
from formers.model.spec import Spec
from formers.patterns import Pattern
from formers.position import NoPosition
from formers.residual import Bare, Residual
from formers.score import NoScore, Score

Entries = tuple[LayerState | None, ...]
LENGTH = 1024
"""The default row length of a layer; only the number of LSH buckets depends on it."""


class Layer(nn.Module):
    """A layer over rows of vectors.

    layer(x) returns y (batch, length, dim) for x (batch, length, dim). layer(x, mask) takes padded rows: mask (batch, length) is bool, True
    at real tokens; padding may be on any side, real tokens do not depend on it, and y is 0 at padding.

    layer(x, state=state) returns (y, state) and continues from `initial_state(batch)` or from the state of the previous call: with a causal
    pattern, chunks of a row give the same y as one call over the row. States are detached.

    layer(x, losses=losses) adds the layer's extra losses, such as the penalty of learned spans, to the dict `losses` by name.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        check(spec)
        self.dim, self.is_causal, self.origin = spec.dim, spec.looks_back, spec.memory.origin
        self.max_length, self.state_shape = MaxLength(spec), spec.state_shape

    def run(self, x: Tensor, context: Context, past: Entries | None) -> tuple[Tensor, Entries]:
        """y for rows x whose real tokens come first, and the state."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, mask: Tensor | None = None, state: State | None = None, losses: dict[str, Tensor] | None = None
    ) -> Any:  # Tensor, or (Tensor, State) with a state, as for torch's recurrent layers
        """y, or (y, state) if a state is given."""
        self._check(x, mask, state)
        state = usable(state)
        given, positions, packed = self.max_length.place(x, mask, state)
        losses = {} if losses is None else losses
        if packed is None:
            context = Context(positions, keep=state is not None, losses=losses)
        else:
            given = packed.blank(given)  # padding may contain NaN
            context = Context(positions, packed.valid, keep=state is not None, losses=losses)
        y, entries = self.run(given, context, state.steps[0] if state is not None and state.steps else None)
        if packed is not None:
            y = packed.undo(y)
        if state is None:
            return y
        read = x.shape[1] if mask is None else mask.sum(dim=1)
        return y, State(state.batch, (entries,), state.next + read, positions.stop, state.origin, self.state_shape)

    def initial_state(self, batch: int) -> State:
        """The state of `batch` rows before their first token."""
        if not isinstance(batch, int) or batch < 1:
            raise FormersError(f"batch={batch!r} is not a number of rows: give an integer of at least 1.")
        self._check_causal()
        return State(batch, next=self.origin, bound=self.origin, origin=self.origin, shape=self.state_shape)

    def _check(self, x: Tensor, mask: Tensor | None, state: State | None) -> None:
        check_vectors("x", x, self.dim, next(self.parameters()))
        check_rows(x, mask, "layer")
        if state is None:
            return
        self._check_causal()
        if not isinstance(state, State):
            raise FormersError(f"state is a {type(state).__name__}: give initial_state({len(x)}), or the state of the call before.")
        if state.batch != len(x):
            raise FormersError(f"the state has {state.batch} rows and x has {len(x)}: start from initial_state({len(x)}).")
        if state.shape != self.state_shape:
            raise FormersError("the state is of another layer or model: start from initial_state of this layer.")

    def _check_causal(self) -> None:
        if not self.is_causal:
            raise FormersError("the layer's pattern is not causal, so it has no state: use a causal pattern, such as Causal().")


class BlockLayer(Layer):
    """A layer that is the first block of a member."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.block = Block(spec, 0)

    def run(self, x: Tensor, context: Context, past: Entries | None) -> tuple[Tensor, Entries]:
        return self.block(x, context, past, 0)


def layer_spec(
    dim: int,
    heads: int,
    pattern: Pattern,
    *,
    attention: Attention | None = None,
    score: Score | None = None,
    memory: int | None = None,
    residual: Residual | None = None,
    feedforward: FeedForward | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    length: int = LENGTH,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> Spec:
    """The spec of a block with one depth step and no positions; parts that are not given are omitted."""
    dim, heads = checked("dim", PositiveInt, dim), checked("heads", PositiveInt, heads)
    if memory is not None and isinstance(pattern, Pattern) and not pattern.is_causal:
        raise FormersError(f"memory={memory} needs a causal pattern, and {pattern} is not causal: give Causal(), or omit memory.")
    carried: Memory = NoMemory() if memory is None else Recurrence(length=memory)
    return Spec(
        name="layer", features=dim, dim=dim, heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout,
        attention_dropout=attention_dropout, position=NoPosition(), pattern=pattern, attention=attention or DotProduct(),
        score=score or NoScore(), memory=carried, residual=residual or Bare(), depth=Stacked(layers=1),
        feedforward=feedforward or NoFeedForward(), head=NoHead(),
    )  # fmt: skip


def check_vectors(name: str, x: Tensor, dim: int, weight: Tensor, dims: int | None = 3) -> None:
    """Raises FormersError unless x is a float tensor (batch, length, dim), or (..., dim) with dims=None, of the layer's dtype."""
    shape = f"(batch, length, {dim})" if dims is not None else f"(..., {dim})"
    if not isinstance(x, Tensor):
        raise FormersError(f"{name} is a {type(x).__name__}: give a float tensor of shape {shape}.")
    if (dims is not None and x.dim() != dims) or x.dim() < 1 or x.shape[-1] != dim or not x.is_floating_point():
        raise FormersError(f"{name} is {x.dtype} of shape {tuple(x.shape)}: give floats of shape {shape}.")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise FormersError(f"{name} is {x.dtype} and the layer's weights are {weight.dtype}: convert one of them with .to(dtype).")
