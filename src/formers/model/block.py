"""A block: self-attention, cross-attention if there is a source, and the feed-forward layer, each in its residual connection.

y = F(prenorm(x)),  x <- merge(x, y)      for F = attention, cross-attention, feed-forward, in this order
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from formers.core import Context, FormersError, HiddenMemory, Watch
from formers.core.context import norm
from formers.core.state import LayerState
from formers.depth.base import BlockState
from formers.model.segment_memory import MemoryPass
from formers.model.spec import Spec

Computed = tuple[Tensor, LayerState | None]
"""The output of a sublayer before it is merged with x, and its state."""


class Block(nn.Module):
    """One depth step."""

    def __init__(self, spec: Spec, layer: int, common: nn.Module | None = None, common_score: nn.Module | None = None) -> None:
        super().__init__()
        sizes, residual, attention = spec.sizes, spec.residual, spec.attention.at(layer)
        self.memory_length, self.zeros = spec.memory.limit, spec.memory.origin
        self.attention = attention.build(sizes, spec.pattern, spec.score.build(sizes, common_score), common)
        self.residual_attention = residual.build(spec.dim, spec.dropout)
        self.has_cross = spec.encoder is not None and not attention.reads_source
        if spec.encoder is not None and self.has_cross:
            self.cross = attention.build_cross(sizes, spec.encoder.width)
            self.residual_cross = residual.build(spec.dim, spec.dropout)
        feedforward = spec.feedforward.build(sizes)
        self.has_feedforward = feedforward is not None
        if feedforward is not None:
            self.feedforward = feedforward
            self.residual_feedforward = residual.build(spec.dim, spec.dropout)
        self.count = 1 + self.has_cross + self.has_feedforward

    def forward(self, x: Tensor, context: Context, past: BlockState | None, step: int) -> tuple[Tensor, BlockState]:
        """x (batch, length, dim) one step deeper, and the state of each sublayer."""
        before = self.check(past)

        y, state = self.attend(x, context, before[0], step)
        x = self.residual_attention.merge(x, y)
        states: BlockState = (state,)

        if self.has_cross:
            y, state = self.attend_source(x, context, before[1], step)
            x = self.residual_cross.merge(x, y)
            states += (state,)

        if self.has_feedforward:
            y, state = self.transform(x, context, before[-1], step)
            x = self.residual_feedforward.merge(x, y)
            states += (state,)

        return x, states

    def attend(self, x: Tensor, context: Context, past: LayerState | None, step: int) -> Computed:
        """Attention(prenorm(x)), with the memory if there is one."""
        if self.memory_length is None:
            y, state = self.attention(self.residual_attention.prenorm(x), context, past, step)
        else:
            memory = self.memory(x, past, step)
            y, state = self.attention(self.residual_attention.prenorm(x), context, memory.attended, step)
            state = memory.next_memory(x, context, state) if context.keep else None
        if context.watch is not None:
            self.record_norm(context.watch, "attention", y, step)
        return y, state

    def attend_source(self, x: Tensor, context: Context, past: LayerState | None, step: int) -> Computed:
        """CrossAttention(prenorm(x)) over the encoder's output."""
        y, state = self.cross(self.residual_cross.prenorm(x), context, past, step)
        if context.watch is not None:
            self.record_norm(context.watch, "cross", y, step)
        return y, state

    def transform(self, x: Tensor, context: Context, past: LayerState | None, step: int) -> Computed:
        """FeedForward(prenorm(x))."""
        y, state = self.feedforward(self.residual_feedforward.prenorm(x), context, past, step)
        if context.watch is not None:
            self.record_norm(context.watch, "feedforward", y, step)
        return y, state

    def sublayers(self) -> list[tuple[Any, Any, Any]]:
        """For each sublayer: the function F(prenorm(x)), its residual connection, and F itself."""
        found = [(self.attend, self.residual_attention, self.attention)]
        if self.has_cross:
            found.append((self.attend_source, self.residual_cross, self.cross))
        if self.has_feedforward:
            found.append((self.transform, self.residual_feedforward, self.feedforward))
        return found

    def check(self, past: BlockState | None) -> BlockState:
        """The past state of each sublayer; raises FormersError for the state of a block with other sublayers."""
        if past is None:
            return (None,) * self.count
        if len(past) != self.count:
            raise FormersError("the state has other sublayers than the model: another model made it; start from initial_state(batch).")
        return past

    def memory(self, x: Tensor, past: LayerState | None, step: int) -> MemoryPass:
        """The memory for attention over x at a step."""
        assert self.memory_length is not None
        if past is None and self.zeros:
            past = HiddenMemory.blank(x, self.zeros)
        return MemoryPass(self.attention, self.residual_attention, x, past, step, self.memory_length)

    def record_norm(self, watch: Watch, name: str, y: Tensor, step: int) -> None:
        """Records the norms of the vectors of y for an inspection."""
        watch.note(f"{name} norm", step, partial(norm, y))
