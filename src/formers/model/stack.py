"""A stack of blocks: attention, cross-attention where there is a source, and the transition, each joined to the stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from formers.attention.multihead import real, within
from formers.core import Cache, FormersError, Hidden, Range, Stream
from formers.core.memory import give_back
from formers.core.state import Entry
from formers.core.stream import norm
from formers.model.reversible import Half, by_halves
from formers.model.spec import Spec
from formers.residual import Reversible

Entries = tuple[Entry | None, ...]
"""What the sublayers of one block leave behind at one depth step."""
Past = tuple[Entries, ...]
SUBLAYERS = ("attention", "cross", "feedforward")
"""The sublayers that a block may have, in their order."""
TIDY = 8
"""After so many checkpointed blocks freed memory is given back: what is kept lies scattered among it, and glibc would let it grow."""


class Block(nn.Module):
    """One depth step: every sublayer in its join."""

    def __init__(self, spec: Spec, layer: int, common: nn.Module | None = None, common_score: nn.Module | None = None) -> None:
        super().__init__()
        sizes, residual, attention = spec.sizes, spec.residual, spec.attention.at(layer)
        self.limit = spec.memory.limit
        self.attention = attention.build(sizes, spec.pattern, spec.score.build(sizes, common_score), common)
        self.join_attention = residual.build(spec.dim, spec.dropout)
        if spec.encoder is not None and not attention.reads_source:
            self.cross = attention.build_cross(sizes, spec.encoder.width)
            self.join_cross = residual.build(spec.dim, spec.dropout)
        transition = spec.feedforward.build(sizes)
        if transition is not None:
            self.feedforward = transition
            self.join_feedforward = residual.build(spec.dim, spec.dropout)
        self.names = [(f"join_{name}", name) for name in SUBLAYERS if name in self._modules]

    def forward(self, x: Tensor, stream: Stream, past: Entries | None, step: int) -> tuple[Tensor, Entries]:
        """x (batch, length, dim) one step deeper, and what each sublayer leaves behind."""
        self.check(past)
        left = []
        for i, (around, _) in enumerate(self.names):
            y, entry = self.answer(i, x, stream, past[i] if past is not None else None, step)
            x = self._modules[around].leave(x, y)  # type: ignore[operator, union-attr]
            left.append(entry)
        return x, tuple(left)

    def check(self, past: Entries | None) -> None:
        """Refuses what another block has left behind."""
        if past is not None and len(past) != len(self.names):
            raise FormersError("the state has other sublayers than the model: it is of another; use initial_state.")

    def answer(self, i: int, x: Tensor, stream: Stream, past: Entry | None, step: int) -> tuple[Tensor, Entry | None]:
        """What sublayer i makes of the stream x, before that joins it, and what it leaves behind."""
        modules: dict[str, Any] = self._modules  # getattr of a module costs a microsecond, which a token of decoding would notice
        around, name = self.names[i]
        join, sublayer = modules[around], modules[name]
        if isinstance(past, Hidden):  # the memory enters as the stream does, as far as it is looked at
            past.check(x)
            seen = within(past, sublayer.reach(step))
            y, entry = sublayer(join.enter(x), stream, replace(seen, states=join.enter(seen.states)), step)
        else:
            y, entry = sublayer(join.enter(x), stream, past, step)
        if stream.keep and self.limit is not None and name == "attention":
            entry = remember(x, stream, past, entry, self.limit)
        if stream.watch is not None:
            stream.watch.note(f"{name} norm", step, partial(norm, y))
        return y, entry


def remember(x: Tensor, stream: Stream, past: Entry | None, entry: Entry | None, limit: int) -> Cache | Hidden:
    """The last `limit` tokens of a past and of x: hidden states where weights learn, else the keys and values of `entry`.

    Keys and values that a state has from a pass without gradients stay what they are, until a segment alone fills the memory.
    """
    assert isinstance(entry, Cache)
    count = x.shape[1]
    if not torch.is_grad_enabled() or (isinstance(past, Cache) and count < limit):
        return (entry if stream.valid is None else entry.packed()).last(limit)
    here = Hidden(x.detach(), real(stream.positions, stream.valid))
    if stream.valid is not None:
        return (past.append(here.states, here.positions) if isinstance(past, Hidden) else here).packed().last(limit)
    here = here.last(limit)
    if not isinstance(past, Hidden) or count >= limit:
        return here
    return past.last(limit - count).append(here.states, here.positions)  # E52


class Stack(nn.Module):
    """Positions, then the blocks as the depth applies them, then the final norm where the residual needs one.

    A reversible residual has two streams, which pass through the sublayers by half steps instead of through blocks.

    Extra vectors stand before the tokens on the way and are gone behind it. Patterns count them; positions do not, which tell tokens
    apart: an extra vector is itself.
    """

    checkpointing: bool = False
    """Whether only each block's input is kept for the backward pass, which computes the rest again; a reversible stack keeps less."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.randn(spec.extra, spec.dim) * spec.spread) if spec.extra else None
        self.position = spec.position.build(spec.sizes)
        self.drop = nn.Dropout(spec.dropout)
        self.common = spec.attention.common(spec.sizes)
        self.common_score = spec.score.common(spec.sizes)
        self.depth = spec.depth.build(lambda layer: Block(spec, layer, self.common, self.common_score))
        self.final = spec.residual.final(spec.dim)
        self.every_step = spec.position.every_step
        self.reversible = spec.residual if isinstance(spec.residual, Reversible) else None

    def forward(self, x: Tensor, stream: Stream, past: Past = ()) -> tuple[Tensor, Past]:
        """Hidden states (batch, length, width) and what every step leaves behind; losses are in stream.losses, taps in stream.taps."""
        position, depth, watch, places = self.position, self.depth, stream.watch, stream.positions
        every_step, reversible = self.every_step, self.reversible
        through = checkpointed if self.checkpointing and torch.is_grad_enabled() else plainly
        left: list[Entries] = [()] * depth.steps
        extra = 0 if self.extra is None else len(self.extra)
        if self.extra is not None:
            x, stream = with_extra(self.extra, x, stream)

        def enter(x: Tensor, t: int) -> Tensor:
            if t == 0 or every_step:
                x = position(x, places, t) if not extra else torch.cat([x[:, :extra], position(x[:, extra:], places, t)], dim=1)
            return self.drop(x) if t == 0 and self.training else x

        def step(block: nn.Module, t: int, x: Tensor) -> Tensor:
            x = enter(x, t)
            if watch is not None:
                watch.note("stream norm", t, partial(norm, x))
            x, left[t] = through(block, x, stream, past[t] if past else None, t)
            if t in stream.tapped:
                stream.taps[t] = self.final(x[:, extra:] if extra else x)
            return x

        if reversible is None:
            x = depth(x, stream, step)
        else:
            halves = self.halves(x, stream, past)
            first, second, entries = by_halves(halves, enter(x, 0), stream, list(self.parameters()), reversible.end)
            x = reversible.end(first, second).to(x.dtype)
            left = [tuple(e for half, e in zip(halves, entries, strict=True) if half.step == t) for t in range(depth.steps)]
        if watch is not None:
            watch.note("stream norm", depth.steps, partial(norm, x))
        return self.final(x[:, extra:] if extra else x), tuple(left) if stream.keep else ()

    def halves(self, x: Tensor, stream: Stream, past: Past) -> list[Half]:
        """The sublayers in the order in which streams pass through them, each with what it left behind before."""
        found: list[Half] = []

        def step(block: nn.Module, t: int, x: Tensor) -> Tensor:
            assert isinstance(block, Block)
            block.check(past[t] if past else None)
            found.extend(Half(block, i, t, past[t][i] if past else None) for i in range(len(block.names)))
            return x

        self.depth(x, stream, step)  # it says which block comes when, and x stays as it is
        return found


def with_extra(extra: Tensor, x: Tensor, stream: Stream) -> tuple[Tensor, Stream]:
    """Tokens x (batch, length, dim) behind extra (count, dim), and their stream; only whole rows from the first token on have such."""
    count = len(extra)
    x = torch.cat([extra.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
    valid = None if stream.valid is None else F.pad(stream.valid, (count, 0), value=True)
    return x, replace(stream, positions=Range(0, x.shape[1]), valid=valid)


def plainly(block: nn.Module, x: Tensor, stream: Stream, past: Entries | None, step: int) -> tuple[Tensor, Entries]:
    """x through a block, and what that leaves behind."""
    return block(x, stream, past, step)


def checkpointed(block: nn.Module, x: Tensor, stream: Stream, past: Entries | None, step: int) -> tuple[Tensor, Entries]:
    """The same, but of all that is computed only x is kept; the rest is computed again in the backward pass, with the same dropout."""
    before: dict[str, Tensor] = dict(stream.losses)
    decided: dict[tuple[str, int], Any] = {}

    def through(x: Tensor) -> tuple[Tensor, Entries, dict[str, Tensor]]:
        if step % TIDY == 0 and x.device.type == "cpu" and not torch.compiler.is_compiling():
            give_back()
        inside = replace(stream, losses=dict(before), decided=decided)  # the second time must not add to what the first has added to
        y, left = block(x, inside, past, step)
        return y, left, inside.losses

    y, left, losses = checkpoint(through, x, use_reentrant=False, preserve_rng_state=True)
    stream.losses.update(losses)
    return y, left
