"""What attention keeps of a stream: keys and values, or the hidden states that they are computed from.

No module stores state. A cache shares one growing buffer with the caches it was appended from, as slices do: appending writes in place
only behind the newest end of the buffer, and copies otherwise, so that two continuations of one state never disturb each other and a
token costs no copy of its past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from formers.core.errors import FormersError
from formers.core.positions import EMPTY, Index, Known, Positions, Range, behind, join, one_by_one, places, take
from formers.core.stored import stored

ROOM = 64
"""Free places that a buffer is given, at least, when it must grow."""
SLACK = 64
"""Keys that no query needs any more and that are held all the same, fewer than this, so that a token costs no copy of its past."""
Tensors = tuple[Tensor, ...]


class _Buffer:
    """Room for tensors (batch, ..., places, width), of whose places the first `used` have been written."""

    def __init__(self, tensors: Tensors, used: int) -> None:
        first = tensors[0]
        self.tensors, self.used = tensors, used
        self.batch, self.room, self.frozen = first.shape[0], first.shape[-2], first.is_inference()

    def takes(self, new: Tensor, end: int) -> bool:
        """Whether further rows may be written at `end`: behind all that is written, in the room there is."""
        if end != self.used or end + new.shape[-2] > self.room or (self.frozen and not torch.is_inference_mode_enabled()):
            return False
        return self.tensors[0].dtype == new.dtype and self.batch == new.shape[0]


def extended(old: Tensors, new: Tensors, buffer: _Buffer | None, start: int) -> tuple[Tensors, _Buffer | None, int]:
    """Tensors (batch, ..., n, width) with new ones behind them, the buffer that they are views of, and where in it they begin.

    Where gradients are on, or under torch.compile, there is no buffer: what a backward pass may need is never written over.
    """
    n, more = old[0].shape[-2], new[0].shape[-2]
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return tuple(torch.cat([a.to(b.dtype), b], dim=-2) for a, b in zip(old, new, strict=True)), None, 0
    if buffer is None or not buffer.takes(new[0], start + n):
        size = _roomy(n + more)
        buffer, start = _Buffer(tuple(_grow(a.to(b.dtype), size) for a, b in zip(old, new, strict=True)), n), 0
    end = start + n + more
    for whole, b in zip(buffer.tensors, new, strict=True):
        whole.narrow(-2, end - more, more).copy_(b)
    buffer.used = end
    return tuple([whole.narrow(-2, start, n + more) for whole in buffer.tensors]), buffer, start


@stored
@dataclass(frozen=True, eq=False)
class Cache:
    """Keys (batch, heads, n, head_dim) and values (batch, heads, n, value_dim) of the n tokens at `positions`.

    They are constants: no gradient flows into them, and they stay what they were when the weights change.
    """

    keys: Tensor
    values: Tensor
    positions: Positions
    buffer: _Buffer | None = field(default=None, metadata={"stored": False})
    start: int = field(default=0, metadata={"stored": False})
    """Where in the buffer the keys begin."""
    solid: int = 0
    """Of positions that stand one by one: how many of the newest places were given a token in every row."""

    def append(self, keys: Tensor, values: Tensor, positions: Positions) -> Cache:
        """The cache with further keys and values behind its own."""
        (batch, heads, more, width), (_, old_heads, n, old_width) = keys.shape, self.keys.shape
        if heads != old_heads or width != old_width or values.shape[3] != self.values.shape[3]:
            raise FormersError("the state has other heads or widths than the model: it is of another; use initial_state.")
        where = join(self.positions, positions, batch)
        solid = (self.solid if isinstance(self.positions, Index) else n) + more
        (keys, values), buffer, start = extended((self.keys, self.values), (keys, values), self.buffer, self.start)
        return Cache(keys, values, where, buffer, start, solid)

    def last(self, n: int) -> Cache:
        """The cache of its last n tokens only; nothing is copied."""
        drop = self.keys.shape[2] - n
        if drop <= 0:
            return self
        where = behind(self.positions, n, self.keys)
        keys, values = self.keys.narrow(2, drop, n), self.values.narrow(2, drop, n)
        return Cache(keys, values, where, self.buffer, self.start + drop, min(self.solid, n))

    def only(self, wanted: Known) -> Cache:
        """The cache of the tokens at some positions only, or of more: copied once as many can be forgotten as make up for it.

        That is an eighth of them, or SLACK. What other caches see of the buffer stays as it is.
        """
        held = self.positions
        if isinstance(held, Index):
            return self
        if isinstance(held, Range) and isinstance(wanted, Range):
            return self if wanted.start <= held.start else self.last(held.stop - wanted.start)
        spare = held.length - wanted.length
        if spare <= 0 or spare < min(SLACK, held.length // 8):
            return self
        where = places(held, wanted)
        if where is None:
            return self
        n = wanted.length
        keys, values = take(self.keys, where, dim=2), take(self.values, where, dim=2)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or n == 0:
            return Cache(keys, values, wanted)
        size = _roomy(n)
        buffer = _Buffer((_grow(keys, size), _grow(values, size)), n)
        keys, values = (whole.narrow(2, 0, n) for whole in buffer.tensors)
        return Cache(keys, values, wanted, buffer)

    def detach(self) -> Cache:
        """The cache without its history of gradients."""
        if not (self.keys.requires_grad or self.values.requires_grad):
            return self
        return replace(self, keys=self.keys.detach(), values=self.values.detach())

    def reset(self, done: Tensor) -> Cache:
        """The cache in which the rows marked in done (batch,) are empty."""
        solid = self.solid if isinstance(self.positions, Index) else self.keys.shape[2]
        return replace(self, positions=_emptied(self.positions, done), solid=solid)

    def map(self, change: Callable[[Tensor], Tensor]) -> Cache:
        """The cache with each of its tensors, batch first, changed."""
        return Cache(change(self.keys), change(self.values), _mapped(self.positions, change), solid=self.solid)

    def packed(self) -> Cache:
        """The same with the empty places of each row before its tokens."""
        order, positions = _packing(self.positions)
        if order is None:
            return self
        keys, values = (x.gather(2, order[:, None, :, None].expand_as(x)) for x in (self.keys, self.values))
        return Cache(keys, values, positions)


@stored
@dataclass(frozen=True, eq=False)
class Hidden:
    """A memory: what a layer was given, (batch, n, dim), for the n tokens at `positions`.

    The current weights make keys and values of it, so that they learn from it. `known` holds the keys and values that a pass without
    gradients has made, with the mark of what they were made of; they are used again only while that mark is the same.
    """

    states: Tensor
    positions: Positions
    zeros: bool = False
    """Whether rows begin with a memory of zeros, which is attended to, and not with an empty one."""
    known: tuple[object, Cache] | None = field(default=None, metadata={"stored": False})
    buffer: _Buffer | None = field(default=None, metadata={"stored": False})
    start: int = field(default=0, metadata={"stored": False})
    """Where in the buffer the states begin."""

    @classmethod
    def blank(cls, x: Tensor, n: int) -> Hidden:
        """A memory of n zeros before the first of x (batch, length, dim)."""
        return cls(x.new_zeros(x.shape[0], n, x.shape[2]), Range(0, n), zeros=True)

    def append(self, states: Tensor, positions: Positions) -> Hidden:
        """Further hidden states behind its own; keys and values are not known of them."""
        self.check(states)
        (both,), buffer, start = extended((self.states,), (states,), self.buffer, self.start)
        return Hidden(both, join(self.positions, positions, len(states)), self.zeros, None, buffer, start)

    def check(self, states: Tensor) -> None:
        """Refuses to go with hidden states of another width."""
        if states.shape[2] != self.states.shape[2]:
            raise FormersError("the state has another width than the model: it is of another; use initial_state.")

    def last(self, n: int) -> Hidden:
        """Its last n tokens only; nothing is copied."""
        drop = self.states.shape[1] - n
        if drop <= 0:
            return self
        where = behind(self.positions, n, self.states)
        return replace(self, states=self.states.narrow(1, drop, n), positions=where, start=self.start + drop)

    def packed(self) -> Hidden:
        """The same with the empty places of each row before its tokens."""
        order, positions = _packing(self.positions)
        if order is None:
            return self
        return Hidden(self.states.gather(1, order[:, :, None].expand_as(self.states)), positions, self.zeros)

    def reset(self, done: Tensor) -> Hidden:
        """The memory in which the rows marked in done (batch,) are as before their first token."""
        known = None if self.known is None or self.zeros else (self.known[0], self.known[1].reset(done))
        if not self.zeros:
            return replace(self, positions=_emptied(self.positions, done), known=known)
        here = torch.arange(self.states.shape[1], device=done.device)
        index = torch.where(done[:, None], here, self.positions.tensor(done.device))
        return Hidden(self.states.masked_fill(done[:, None, None], 0), one_by_one(index, self.positions.stop, self.positions), True)

    def map(self, change: Callable[[Tensor], Tensor]) -> Hidden:
        """The memory with each of its tensors, batch first, changed."""
        states = change(self.states)
        same = self.known is not None and states.dtype == self.states.dtype and states.device == self.states.device
        known = (self.known[0], self.known[1].map(change)) if self.known is not None and same else None
        return Hidden(states, _mapped(self.positions, change), self.zeros, known)


def _emptied(positions: Positions, done: Tensor) -> Index:
    """Positions with none in the rows marked in done (batch,)."""
    index = positions.tensor(done.device).expand(done.shape[0], -1)
    return one_by_one(index.masked_fill(done[:, None], EMPTY), positions.stop, positions)


def _mapped(positions: Positions, change: Callable[[Tensor], Tensor]) -> Positions:
    return replace(positions, index=change(positions.index)) if isinstance(positions, Index) else positions


def _packing(positions: Positions) -> tuple[Tensor | None, Positions]:
    """An order that puts the empty places of each row first, and the positions in it; None where there are none."""
    if not isinstance(positions, Index) or positions.index.dim() == 1:
        return None, positions
    ordered, order = positions.index.sort(dim=1, stable=True)  # tokens stand in order, and EMPTY is before them all
    return order, replace(positions, index=ordered)


def _roomy(n: int) -> int:
    """The places of a buffer that holds n tokens and is to grow."""
    return n + max(ROOM, n // 2)


def _grow(x: Tensor, size: int) -> Tensor:
    """x (batch, ..., n, width) at the beginning of a tensor of `size` places."""
    grown = x.new_empty(*x.shape[:-2], size, x.shape[-1])
    grown.narrow(-2, 0, x.shape[-2]).copy_(x)
    return grown
