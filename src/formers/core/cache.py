"""The attention caches: keys and values (KVCache), or the hidden states that they are computed from (HiddenMemory).

No module stores state. A cache and the caches appended from it share one growing buffer. Appending writes in place only after the last
used slot of the buffer, and copies otherwise. So two continuations of one state are independent, and appending a token does not copy the
past.

A call that generates text uses each state once and does not return it. It reserves its buffers: they are allocated once for all tokens.
If only the last tokens are kept, and the end of such a buffer is reached, they are moved to its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from formers.core.errors import FormersError
from formers.core.positions import (
    EMPTY,
    ExplicitPositions,
    Positions,
    Range,
    StaticPositions,
    explicit_positions,
    find_slices,
    join,
    last_positions,
    take_slices,
)
from formers.core.serialise import serialisable

MIN_GROWTH = 64
"""The least number of free slots that a buffer gets when it grows."""
SLACK = 64
"""Fewer unneeded keys than this are not removed, so that a token does not cause a copy of the past."""
Tensors = tuple[Tensor, ...]


class _Buffer:
    """Preallocated tensors (batch, ..., slots, width), of which the first `used` slots have been written.

    reserved: only the newest cache of the buffer is ever used again, so that the slots before it may be overwritten.
    """

    def __init__(self, tensors: Tensors, used: int, reserved: bool = False) -> None:
        first = tensors[0]
        self.tensors, self.used, self.reserved = tensors, used, reserved
        self.batch, self.capacity, self.frozen = first.shape[0], first.shape[-2], first.is_inference()

    def can_append(self, new: Tensor, end: int) -> bool:
        """Whether new rows can be written in place at `end`: after all used slots, within the capacity."""
        if end != self.used or end + new.shape[-2] > self.capacity or (self.frozen and not torch.is_inference_mode_enabled()):
            return False
        return self.tensors[0].dtype == new.dtype and self.batch == new.shape[0]

    def rewind(self, start: int, n: int) -> bool:
        """Moves the n newest slots, from `start`, to the beginning if the buffer is reserved and they do not overlap; whether it did."""
        if not self.reserved or start < n or start + n != self.used:
            return False
        for whole in self.tensors:
            whole.narrow(-2, 0, n).copy_(whole.narrow(-2, start, n))
        self.used = n
        return True


def append_rows(old: Tensors, new: Tensors, buffer: _Buffer | None, start: int) -> tuple[Tensors, _Buffer | None, int]:
    """Appends new rows to tensors (batch, ..., n, width); returns the tensors, the buffer that they are views of, and their start in it.

    With gradients, or under torch.compile, there is no buffer: tensors that a backward pass may need are never overwritten.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return tuple(torch.cat([a.to(b.dtype), b], dim=-2) for a, b in zip(old, new, strict=True)), None, 0
    n, more = old[0].shape[-2], new[0].shape[-2]
    if buffer is not None and start + n + more > buffer.capacity and buffer.rewind(start, n):
        start = 0
    if buffer is None or not buffer.can_append(new[0], start + n):
        size = _capacity(n + more)
        buffer, start = _Buffer(tuple(_grow(a.to(b.dtype), size) for a, b in zip(old, new, strict=True)), n), 0
    end = start + n + more
    for whole, b in zip(buffer.tensors, new, strict=True):
        whole.narrow(-2, end - more, more).copy_(b)
    buffer.used = end
    return tuple([whole.narrow(-2, start, n + more) for whole in buffer.tensors]), buffer, start


@serialisable
@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys (batch, heads, n, head_dim) and values (batch, heads, n, value_dim) of the n tokens at `positions`.

    They are constants: no gradient flows into them, and they are not recomputed when the weights change.
    """

    keys: Tensor
    values: Tensor
    positions: Positions
    buffer: _Buffer | None = field(default=None, metadata={"serialised": False})
    start: int = field(default=0, metadata={"serialised": False})
    """The first slot of the keys in the buffer."""
    solid: int = 0
    """With explicit positions: how many of the newest slots contain a token in every row."""

    def append(self, keys: Tensor, values: Tensor, positions: Positions) -> KVCache:
        """The cache with further keys and values appended."""
        batch, heads, more, width = keys.shape
        _, old_heads, n, old_width = self.keys.shape
        if heads != old_heads or width != old_width or values.shape[3] != self.values.shape[3]:
            raise FormersError(
                "the state has other heads or widths than the model: another model made it; start from initial_state(batch)."
            )
        where = join(self.positions, positions, batch)
        solid = (self.solid if isinstance(self.positions, ExplicitPositions) else n) + more
        (keys, values), buffer, start = append_rows((self.keys, self.values), (keys, values), self.buffer, self.start)
        return KVCache(keys, values, where, buffer, start, solid)

    def last(self, n: int) -> KVCache:
        """The cache of the last n tokens only; nothing is copied, except under torch.compile."""
        drop = self.keys.shape[2] - n
        if torch.compiler.is_compiling():  # without a comparison, each outcome of which would be a graph
            drop = max(drop, 0)
            n = self.keys.shape[2] - drop
        elif drop <= 0:
            return self
        where = last_positions(self.positions, n, self.keys)
        keys, values = (_last(x, 2, drop, n) for x in (self.keys, self.values))
        return KVCache(keys, values, where, self.buffer, self.start + drop, min(self.solid, n))

    def keep_only(self, wanted: StaticPositions) -> KVCache:
        """The cache of the tokens at the wanted positions; it may keep others until removing them is worth a copy.

        A copy is made once an eighth of the tokens, or SLACK tokens, can be removed. Other views of the buffer do not change.
        """
        held = self.positions
        if isinstance(held, ExplicitPositions):
            return self
        if isinstance(held, Range) and isinstance(wanted, Range):
            return self if wanted.start <= held.start else self.last(held.stop - wanted.start)
        spare = held.length - wanted.length
        if spare <= 0 or spare < min(SLACK, held.length // 8):
            return self
        where = find_slices(held, wanted)
        if where is None:
            return self
        n = wanted.length
        keys, values = take_slices(self.keys, where, dim=2), take_slices(self.values, where, dim=2)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or n == 0:
            return KVCache(keys, values, wanted)
        size = _capacity(n)
        buffer = _Buffer((_grow(keys, size), _grow(values, size)), n)
        keys, values = (whole.narrow(2, 0, n) for whole in buffer.tensors)
        return KVCache(keys, values, wanted, buffer)

    def reserve(self, slots: int) -> KVCache:
        """The cache in a reserved buffer of its own with so many slots, or as many as it needs."""
        n = self.keys.shape[2]
        buffer = _Buffer(tuple(_grow(x, max(n, slots)) for x in (self.keys, self.values)), n, reserved=True)
        keys, values = (whole.narrow(2, 0, n) for whole in buffer.tensors)
        return KVCache(keys, values, self.positions, buffer, 0, self.solid)

    def detach(self) -> KVCache:
        """The detached cache."""
        if not (self.keys.requires_grad or self.values.requires_grad):
            return self
        return replace(self, keys=self.keys.detach(), values=self.values.detach())

    def reset(self, done: Tensor) -> KVCache:
        """The cache with the rows marked in done (batch,) emptied."""
        solid = self.solid if isinstance(self.positions, ExplicitPositions) else self.keys.shape[2]
        return replace(self, positions=_cleared(self.positions, done), solid=solid)

    def map(self, change: Callable[[Tensor], Tensor]) -> KVCache:
        """The cache with `change` applied to each of its tensors, batch first."""
        return KVCache(change(self.keys), change(self.values), _mapped(self.positions, change), solid=self.solid)

    def left_padded(self) -> KVCache:
        """The cache with the empty slots of each row before its tokens."""
        order, positions = _left_padding(self.positions)
        if order is None:
            return self
        keys, values = (x.gather(2, order[:, None, :, None].expand_as(x)) for x in (self.keys, self.values))
        return KVCache(keys, values, positions)


@serialisable
@dataclass(frozen=True, eq=False)
class HiddenMemory:
    """A hidden-state memory: the inputs (batch, n, dim) of a layer for the n tokens at `positions`.

    Keys and values are computed from it with the current weights, so that these weights get gradients. `cached_kv` has the keys and
    values of a pass without gradients and the version of the weights they were computed with; they are reused while it is unchanged.
    """

    states: Tensor
    positions: Positions
    zeros: bool = False
    """Whether rows begin with a memory of zero vectors, which are attended to, and not with an empty memory."""
    cached_kv: tuple[object, KVCache] | None = field(default=None, metadata={"serialised": False})
    buffer: _Buffer | None = field(default=None, metadata={"serialised": False})
    start: int = field(default=0, metadata={"serialised": False})
    """The first slot of the states in the buffer."""

    @classmethod
    def blank(cls, x: Tensor, n: int) -> HiddenMemory:
        """The memory before the first token of x (batch, length, dim): n zero vectors."""
        return cls(x.new_zeros(x.shape[0], n, x.shape[2]), Range(0, n), zeros=True)

    def append(self, states: Tensor, positions: Positions) -> HiddenMemory:
        """The memory with further hidden states appended, without cached keys and values."""
        self.check(states)
        (both,), buffer, start = append_rows((self.states,), (states,), self.buffer, self.start)
        return HiddenMemory(both, join(self.positions, positions, len(states)), self.zeros, None, buffer, start)

    def check(self, states: Tensor) -> None:
        """Raises FormersError if hidden states have another width than the memory."""
        if states.shape[2] != self.states.shape[2]:
            raise FormersError("the state has another width than the model: another model made it; start from initial_state(batch).")

    def last(self, n: int) -> HiddenMemory:
        """The memory of the last n tokens only; nothing is copied."""
        drop = self.states.shape[1] - n
        if torch.compiler.is_compiling():  # as in KVCache
            drop = max(drop, 0)
            n = self.states.shape[1] - drop
        elif drop <= 0:
            return self
        where = last_positions(self.positions, n, self.states)
        return replace(self, states=_last(self.states, 1, drop, n), positions=where, start=self.start + drop)

    def reserve(self, slots: int) -> HiddenMemory:
        """The memory in a reserved buffer of its own with so many slots, or as many as it needs; its keys and values in another."""
        n = self.states.shape[1]
        buffer = _Buffer((_grow(self.states, max(n, slots)),), n, reserved=True)
        cached_kv = None if self.cached_kv is None else (self.cached_kv[0], self.cached_kv[1].reserve(slots))
        return replace(self, states=buffer.tensors[0].narrow(1, 0, n), cached_kv=cached_kv, buffer=buffer, start=0)

    def left_padded(self) -> HiddenMemory:
        """The memory with the empty slots of each row before its tokens."""
        order, positions = _left_padding(self.positions)
        if order is None:
            return self
        return HiddenMemory(self.states.gather(1, order[:, :, None].expand_as(self.states)), positions, self.zeros)

    def reset(self, done: Tensor) -> HiddenMemory:
        """The memory with the rows marked in done (batch,) as before their first token."""
        cached_kv = None if self.cached_kv is None or self.zeros else (self.cached_kv[0], self.cached_kv[1].reset(done))
        if not self.zeros:
            return replace(self, positions=_cleared(self.positions, done), cached_kv=cached_kv)
        here = torch.arange(self.states.shape[1], device=done.device)
        index = torch.where(done[:, None], here, self.positions.tensor(done.device))
        return HiddenMemory(
            self.states.masked_fill(done[:, None, None], 0), explicit_positions(index, self.positions.stop, self.positions), True
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> HiddenMemory:
        """The memory with `change` applied to each of its tensors, batch first."""
        states = change(self.states)
        same = self.cached_kv is not None and states.dtype == self.states.dtype and states.device == self.states.device
        cached_kv = (self.cached_kv[0], self.cached_kv[1].map(change)) if self.cached_kv is not None and same else None
        return HiddenMemory(states, _mapped(self.positions, change), self.zeros, cached_kv)


def _last(x: Tensor, dim: int, start: int, n: int) -> Tensor:
    """n indices of a dimension from `start`: a view, but under torch.compile a copy, because other strides would be another graph."""
    part = x.narrow(dim, start, n)
    return part.clone(memory_format=torch.contiguous_format) if torch.compiler.is_compiling() else part


def _cleared(positions: Positions, done: Tensor) -> ExplicitPositions:
    """Positions with all slots empty in the rows marked in done (batch,)."""
    index = positions.tensor(done.device).expand(done.shape[0], -1)
    return explicit_positions(index.masked_fill(done[:, None], EMPTY), positions.stop, positions)


def _mapped(positions: Positions, change: Callable[[Tensor], Tensor]) -> Positions:
    return replace(positions, index=change(positions.index)) if isinstance(positions, ExplicitPositions) else positions


def _left_padding(positions: Positions) -> tuple[Tensor | None, Positions]:
    """The permutation that moves the empty slots of each row to the front, and the permuted positions; None if no slot can be empty."""
    if not isinstance(positions, ExplicitPositions) or positions.index.dim() == 1:
        return None, positions
    ordered, order = positions.index.sort(dim=1, stable=True)  # tokens are in order, and EMPTY is less than any position
    return order, replace(positions, index=ordered)


def _capacity(n: int) -> int:
    """The slots of a growing buffer for n tokens."""
    return n + max(MIN_GROWTH, n // 2)


def _grow(x: Tensor, size: int) -> Tensor:
    """x (batch, ..., n, width) at the start of a tensor with `size` slots."""
    grown = x.new_empty(*x.shape[:-2], size, x.shape[-1])
    grown.narrow(-2, 0, x.shape[-2]).copy_(x)
    return grown
