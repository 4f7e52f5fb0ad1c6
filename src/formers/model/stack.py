"""A stack of blocks: attention, cross-attention where there is a source, and the transition, each joined to the stream."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from formers.core import FormersError, Stream
from formers.core.state import Entry
from formers.model.spec import Spec

Past = tuple[tuple[Entry | None, ...], ...]


class Source(NamedTuple):
    """What a decoder reads beside its own stream: the encoder's output (batch, n, dim), real tokens first."""

    hidden: Tensor
    valid: Tensor | None


class Block(nn.Module):
    """One depth step: every sublayer in its join."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        sizes = spec.sizes
        self.attention = spec.attention.build(sizes, spec.pattern, spec.score)
        self.cross = None if spec.encoder is None else spec.attention.build_cross(sizes, spec.encoder.dim)
        self.feedforward = spec.feedforward.build(sizes)
        self.join_attention = spec.residual.build(spec.dim, spec.dropout)
        self.join_cross = None if self.cross is None else spec.residual.build(spec.dim, spec.dropout)
        self.join_feedforward = None if self.feedforward is None else spec.residual.build(spec.dim, spec.dropout)
        with torch.no_grad():
            for sublayer in (self.attention, self.cross, self.feedforward):
                if sublayer is not None:
                    cast(nn.Linear, sublayer.out).weight.mul_(spec.residual.gain(spec.depth.steps))

    def forward(
        self, x: Tensor, stream: Stream, source: Source | None, past: tuple[Entry | None, ...] | None, step: int
    ) -> tuple[Tensor, tuple[Entry | None, ...]]:
        """x (batch, length, dim) one step deeper, and what each sublayer leaves behind."""
        before = past or (None, None, None)
        if past and (before[1] is None) != (self.cross is None):
            raise FormersError("the state has other sublayers than the model: it is of another; use initial_state.")
        join = self.join_attention
        y, seen = self.attention(join.enter(x), stream, before[0], step)
        x = join.leave(x, y)
        read = None
        if self.cross is not None and self.join_cross is not None:
            hidden, valid = (None, None) if source is None else source
            y, read = self.cross(self.join_cross.enter(x), hidden, valid, before[1], stream.keep)
            x = self.join_cross.leave(x, y)
        made = None
        if self.feedforward is not None and self.join_feedforward is not None:
            y, made = self.feedforward(self.join_feedforward.enter(x), stream, before[2], step)
            x = self.join_feedforward.leave(x, y)
        return x, (seen, read, made)


class Stack(nn.Module):
    """Positions, then the blocks as the depth applies them, then the final norm where the residual needs one."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.position = spec.position.build(spec.sizes)
        self.drop = nn.Dropout(spec.dropout)
        self.depth = spec.depth.build(lambda: Block(spec))
        self.final = spec.residual.final(spec.dim)

    def forward(self, x: Tensor, stream: Stream, source: Source | None = None, past: Past = ()) -> tuple[Tensor, Past, dict[str, Tensor]]:
        """Hidden states (batch, length, dim), what every step leaves behind, and named extra losses."""
        left: list[tuple[Entry | None, ...]] = []

        def step(block: nn.Module, t: int, x: Tensor) -> Tensor:
            x = self.position(x, stream.positions, t)
            if t == 0:
                x = self.drop(x)
            x, entries = block(x, stream, source, past[t] if past else None, t)
            left.append(entries)
            return x

        x, losses = self.depth(x, step)
        return self.final(x), tuple(left) if stream.keep else (), losses
