"""A stack of blocks: attention, cross-attention where there is a source, and the transition, each joined to the stream."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import FormersError, Stream
from formers.core.state import Entry
from formers.model.spec import Spec
from formers.residual.base import Join

Entries = tuple[Entry | None, ...]
"""What the sublayers of one block leave behind at one depth step."""
Past = tuple[Entries, ...]


class Block(nn.Module):
    """One depth step: every sublayer in its join."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        sizes, residual = spec.sizes, spec.residual
        self.attention = spec.attention.build(sizes, spec.pattern, spec.score)
        self.join_attention = residual.build(spec.dim, spec.dropout)
        if spec.encoder is not None:
            self.cross = spec.attention.build_cross(sizes, spec.encoder.dim)
            self.join_cross = residual.build(spec.dim, spec.dropout)
        transition = spec.feedforward.build(sizes)
        if transition is not None:
            self.feedforward = transition
            self.join_feedforward = residual.build(spec.dim, spec.dropout)

    @property
    def sublayers(self) -> list[tuple[Join, nn.Module]]:
        """The joins and the sublayers in them, in order."""
        names = [name for name in ("attention", "cross", "feedforward") if hasattr(self, name)]
        return [(getattr(self, f"join_{name}"), getattr(self, name)) for name in names]

    def forward(self, x: Tensor, stream: Stream, past: Entries | None, step: int) -> tuple[Tensor, Entries]:
        """x (batch, length, dim) one step deeper, and what each sublayer leaves behind."""
        sublayers = self.sublayers
        if past is not None and len(past) != len(sublayers):
            raise FormersError("the state has other sublayers than the model: it is of another; use initial_state.")
        left = []
        for i, (join, sublayer) in enumerate(sublayers):
            y, entry = sublayer(join.enter(x), stream, past[i] if past is not None else None, step)
            x = join.leave(x, y)
            left.append(entry)
        return x, tuple(left)


class Stack(nn.Module):
    """Positions, then the blocks as the depth applies them, then the final norm where the residual needs one."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.position = spec.position.build(spec.sizes)
        self.drop = nn.Dropout(spec.dropout)
        self.depth = spec.depth.build(lambda: Block(spec))
        self.final = spec.residual.final(spec.dim)

    def forward(self, x: Tensor, stream: Stream, past: Past = ()) -> tuple[Tensor, Past]:
        """Hidden states (batch, length, dim) and what every step leaves behind; extra losses are in stream.losses."""
        left: list[Entries] = [()] * self.depth.steps

        def step(block: nn.Module, t: int, x: Tensor) -> Tensor:
            x = self.position(x, stream.positions, t)
            if t == 0:
                x = self.drop(x)
            x, left[t] = block(x, stream, past[t] if past else None, t)
            return x

        x = self.depth(x, stream, step)
        return self.final(x), tuple(left) if stream.keep else ()
