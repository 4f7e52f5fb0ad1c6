"""A stack of blocks: attention, cross-attention where there is a source, and the transition, each joined to the stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from formers.attention.chosen import Kept
from formers.attention.multihead import SelfAttention
from formers.core import FormersError, Hidden, Positions, Range, Stream
from formers.core.memory import give_back
from formers.core.state import Entry
from formers.core.stream import norm
from formers.feedforward.dense import Transition
from formers.model.remember import MemoryPass
from formers.model.reversible import Half, by_halves
from formers.model.some import some_tokens
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
        self.limit, self.zeros = spec.memory.limit, spec.memory.origin
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

    @property
    def skips(self) -> bool:
        """Whether it can be applied to some of the tokens alone (`some_tokens`)."""
        attention, transition = self._modules["attention"], self._modules.get("feedforward")
        if type(attention) is not SelfAttention or not isinstance(transition, Transition | None):
            return False
        return type(attention.qkv) is nn.Linear  # which is applied in parts; a wrapper, such as an adapter, is not

    def check(self, past: Entries | None) -> None:
        """Refuses what another block has left behind."""
        if past is not None and len(past) != len(self.names):
            raise FormersError("the state has other sublayers than the model: it is of another; use initial_state.")

    def answer(self, i: int, x: Tensor, stream: Stream, past: Entry | None, step: int) -> tuple[Tensor, Entry | None]:
        """What sublayer i makes of the stream x, before that joins it, and what it leaves behind."""
        modules: dict[str, Any] = self._modules  # getattr of a module costs a microsecond, which a token of decoding would notice
        around, name = self.names[i]
        join, sublayer = modules[around], modules[name]
        memory = self.memory(x, past, step) if self.limit is not None and name == "attention" else None
        if memory is None:
            y, entry = sublayer(join.enter(x), stream, past, step)
        else:
            y, entry = sublayer(join.enter(x), stream, memory.entering, step)
            entry = memory.remember(x, stream, entry) if stream.keep else None
        if stream.watch is not None:
            stream.watch.note(f"{name} norm", step, partial(norm, y))
        return y, entry

    def memory(self, x: Tensor, past: Entry | None, step: int) -> MemoryPass | None:
        """What attention over x at a step is given of its memory; None where there is no memory."""
        if self.limit is None:
            return None
        if past is None and self.zeros:
            past = Hidden.blank(x, self.zeros)
        return MemoryPass(self.attention, self.join_attention, x, past, step, self.limit)


class Stack(nn.Module):
    """Positions, then the blocks as the depth applies them, then the final norm where the residual needs one.

    A reversible residual has two streams, which pass through the sublayers by half steps instead of through blocks.

    Extra vectors stand before the tokens on the way and are gone behind it. Patterns count them; positions do not, which tell tokens
    apart: an extra vector is itself.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("extra",)
    checkpointing: bool = False
    """Whether only each block's input is kept for the backward pass, which computes the rest again; a reversible stack keeps less."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.randn(spec.extra, spec.dim) * spec.spread) if spec.extra else None
        self.position = spec.position.build(spec.sizes)
        self.drop = nn.Dropout(spec.dropout)
        self.common = spec.attention.common(spec.sizes)
        self.common_score = spec.score.common(spec.sizes)
        self.depth = spec.depth.build(lambda layer: Block(spec, layer, self.common, self.common_score), spec.sizes)
        self.final = spec.residual.build_final(spec.dim)
        self.every_step = spec.position.every_step
        self.reversible = spec.residual if isinstance(spec.residual, Reversible) else None

    def forward(self, x: Tensor, stream: Stream, past: Past = ()) -> tuple[Tensor, Past]:
        """Hidden states (batch, length, width) and what every step leaves behind; losses are in stream.losses, taps in stream.taps."""
        reversible, depth = self.reversible, self.depth
        places = self.position.shifted(stream.positions, x.shape[0], x.device, stream.starts)
        if self.extra is not None:
            x, stream = with_extra(self.extra, x, stream)
        walk = Passing(self, stream, past, places)
        if reversible is None:
            x = depth(x, stream, walk)
        else:
            halves = self.halves(x, stream, past)
            first, second, entries = by_halves(halves, walk.enter(x, 0), stream, list(self.parameters()), reversible.end)
            x = reversible.end(first, second).to(x.dtype)
            walk.left = [tuple(e for half, e in zip(halves, entries, strict=True) if half.step == t) for t in range(depth.steps)]
        if stream.watch is not None:
            stream.watch.note("stream norm", depth.steps, partial(norm, x))
        return self.final(x[:, walk.extra :] if walk.extra else x), tuple(walk.left) if stream.keep else ()

    def halves(self, x: Tensor, stream: Stream, past: Past) -> list[Half]:
        """The sublayers in the order in which streams pass through them, each with what it left behind before."""
        order = _Order(past)
        self.depth(x, stream, order)
        return order.found


class Passing:
    """One pass of a stream through a stack: the walk that its depth takes, and what every step leaves behind."""

    def __init__(self, stack: Stack, stream: Stream, past: Past, places: Positions) -> None:
        self.stack, self.stream, self.past, self.places = stack, stream, past, places
        """places: of the tokens, without the extra vectors before them."""
        self.extra = 0 if stack.extra is None else len(stack.extra)
        self.left: list[Entries] = [()] * stack.depth.steps
        self.kept = Kept()
        self.apply = checkpointed if stack.checkpointing and torch.is_grad_enabled() else plainly

    def enter(self, x: Tensor, t: int) -> Tensor:
        """x with the positions of its tokens, where they are added at this step; dropped out before the first."""
        stack, extra = self.stack, self.extra
        if t == 0 or stack.every_step:
            position, places = stack.position, self.places
            x = position(x, places, t) if not extra else torch.cat([x[:, :extra], position(x[:, extra:], places, t)], dim=1)
        return stack.drop(x) if t == 0 and stack.training else x

    def through(self, block: nn.Module, x: Tensor, t: int) -> Tensor:
        """What a block makes of x at step t."""
        stream, past = self.stream, self.past
        if stream.watch is not None:
            stream.watch.note("stream norm", t, partial(norm, x))
        if self.kept.kv is not None:  # all tokens change
            self.kept = Kept()
        x, self.left[t] = self.apply(block, x, stream, past[t] if past else None, t)
        if t in stream.tapped:
            stream.taps[t] = self.stack.final(x[:, self.extra :] if self.extra else x)
        return x

    def some(self, block: nn.Module, x: Tensor, t: int, active: Tensor) -> Tensor | None:
        """What a block makes of the active tokens of x at step t; None where it has to compute them all."""
        assert isinstance(block, Block)
        kept = self.still(block, x, t)
        made = some_tokens(block, x, self.stream, self.past[t] if self.past else None, t, active, kept)
        if made is None:
            return None
        kept.changed = active
        y, self.left[t] = made
        return y

    def still(self, block: Block, x: Tensor, t: int) -> Kept:
        """What is known at step t of the keys of tokens that stay as they are; nothing where the step's signal changes them at will."""
        if not self.stack.every_step:
            return self.kept
        # Of a sum, keys and values are the sum: the step's part is added to what is known, unless a norm stands between.
        self.kept.signal = None if self.extra or not block.join_attention.enters_as_it_is else self.stack.position.alike(t, x)
        return Kept() if self.kept.signal is None else self.kept

    def rows(self, kept: Tensor) -> Passing | None:
        """The pass of some rows alone, whose tokens stand where those of all rows do."""
        stream, source = self.stream, self.stream.source
        if stream.keep or self.past or not isinstance(self.places, Range):
            return None
        valid = None if stream.valid is None else stream.valid[kept]
        if source is not None:
            source = source._replace(hidden=source.hidden[kept], valid=None if source.valid is None else source.valid[kept])
        inner = Passing(self.stack, replace(stream, valid=valid, source=source), (), self.places)
        inner.kept = self.kept.rows(kept)
        return inner


class _Order:
    """A walk that goes nowhere, and notes which sublayer would come when; x stays as it is."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.found: list[Half] = []

    def enter(self, x: Tensor, t: int) -> Tensor:
        return x

    def through(self, block: nn.Module, x: Tensor, t: int) -> Tensor:
        assert isinstance(block, Block)
        block.check(self.past[t] if self.past else None)
        self.found.extend(Half(block, i, t, self.past[t][i] if self.past else None) for i in range(len(block.names)))
        return x

    def some(self, block: nn.Module, x: Tensor, t: int, active: Tensor) -> Tensor | None:
        return None

    def rows(self, kept: Tensor) -> _Order | None:
        return None


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
