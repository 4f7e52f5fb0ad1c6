"""What a stream leaves behind for its continuation: a value that goes in and comes out, indexed by depth step.

No module stores state. A `Cache` shares one growing buffer with the caches it was appended from, as slices do: appending writes
in place only behind the newest end of the buffer, and copies otherwise, so that two continuations of one state never
disturb each other and a token costs no copy of its past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from formers.core.errors import FormersError
from formers.core.positions import EMPTY, Index, Known, Positions, Range, behind, join, one_by_one, places, take
from formers.core.stored import stored

ROOM = 64
"""Free places that a buffer is given, at least, when it must grow."""
SLACK = 64
"""Keys that nobody needs any more and that are held all the same, fewer than this, so that a token costs no copy of its past."""


class _Buffer:
    """Room for keys and values, of which the first `used` places have been written."""

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        self.keys, self.values, self.used = keys, values, used
        self.batch, self.room, self.frozen = keys.shape[0], keys.shape[2], keys.is_inference()

    def takes(self, keys: Tensor, end: int, more: int) -> bool:
        """Whether `more` keys of these rows and type may be written at `end`: behind all that is written, in the room there is."""
        if end != self.used or end + more > self.room or (self.frozen and not torch.is_inference_mode_enabled()):
            return False
        return self.keys.dtype == keys.dtype and self.batch == keys.shape[0]


@stored
@dataclass(frozen=True, eq=False)
class Cache:
    """Keys (batch, heads, n, head_dim) and values (batch, heads, n, value_dim) of the n tokens at `positions`."""

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
        if torch.compiler.is_compiling() or torch.is_grad_enabled():  # what backward may still need is never written over
            old_keys, old_values = self.keys.to(keys.dtype), self.values.to(values.dtype)
            return Cache(torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2), where, solid=solid)
        buffer, start = self.buffer, self.start
        if buffer is None or not buffer.takes(keys, start + n, more):
            size = _roomy(n + more)
            buffer, start = _Buffer(_grow(self.keys.to(keys.dtype), size), _grow(self.values.to(values.dtype), size), n), 0
        end = start + n + more
        buffer.keys.narrow(2, end - more, more).copy_(keys)
        buffer.values.narrow(2, end - more, more).copy_(values)
        buffer.used = end
        return Cache(buffer.keys.narrow(2, start, n + more), buffer.values.narrow(2, start, n + more), where, buffer, start, solid)

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
        buffer = _Buffer(_grow(keys, size), _grow(values, size), n)
        return Cache(buffer.keys.narrow(2, 0, n), buffer.values.narrow(2, 0, n), wanted, buffer)

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
    """What a layer was given, (batch, n, dim), for the n tokens at `positions`: of this the weights of the day make keys and values."""

    states: Tensor
    positions: Positions

    def append(self, states: Tensor, positions: Positions) -> Hidden:
        """Further hidden states behind its own."""
        self.check(states)
        both = torch.cat([self.states.to(states.dtype), states], dim=1)
        return Hidden(both, join(self.positions, positions, len(states)))

    def check(self, states: Tensor) -> None:
        """Refuses to go with hidden states of another width."""
        if states.shape[2] != self.states.shape[2]:
            raise FormersError("the state has another width than the model: it is of another; use initial_state.")

    def last(self, n: int) -> Hidden:
        """Its last n tokens only; nothing is copied."""
        held = self.states.shape[1]
        return self if n >= held else Hidden(self.states[:, held - n :], behind(self.positions, n, self.states))

    def packed(self) -> Hidden:
        """The same with the empty places of each row before its tokens."""
        order, positions = _packing(self.positions)
        return self if order is None else Hidden(self.states.gather(1, order[:, :, None].expand_as(self.states)), positions)

    def reset(self, done: Tensor) -> Hidden:
        """The memory in which the rows marked in done (batch,) are empty."""
        return Hidden(self.states, _emptied(self.positions, done))

    def map(self, change: Callable[[Tensor], Tensor]) -> Hidden:
        """The memory with each of its tensors, batch first, changed."""
        return Hidden(change(self.states), _mapped(self.positions, change))


@stored
@dataclass(frozen=True, eq=False)
class Carried:
    """The state (batch, dim) of a recurrent cell behind the last token of each row; an LSTM has two."""

    h: Tensor
    c: Tensor | None = None

    @classmethod
    def of(cls, states: tuple[Tensor, ...]) -> Carried:
        """States that leave their stream: without their history of gradients."""
        return cls(*(s.detach() for s in states))

    @property
    def states(self) -> tuple[Tensor, ...]:
        """(h,), or (h, c)."""
        return (self.h,) if self.c is None else (self.h, self.c)

    def reset(self, done: Tensor) -> Carried:
        """The state in which the rows marked in done (batch,) are zero, as before the first token."""
        return self.map(lambda s: s.masked_fill(done[:, None], 0))

    def map(self, change: Callable[[Tensor], Tensor]) -> Carried:
        """The state with each of its tensors, batch first, changed."""
        return Carried(change(self.h), None if self.c is None else change(self.c))


@stored
@dataclass(frozen=True, eq=False)
class Tail:
    """The last n vectors (batch, n, width) that a sublayer was given, the newest last: zeros where there was none.

    What looks back over so many places needs no more of its past.
    """

    states: Tensor

    @classmethod
    def blank(cls, x: Tensor, n: int) -> Tail:
        """The tail of n places before the first of x (batch, length, width)."""
        return cls(x.new_zeros(x.shape[0], n, x.shape[2]))

    def before(self, x: Tensor) -> Tensor:
        """x (batch, length, width) behind the tail: (batch, n + length, width)."""
        if self.states.shape[2] != x.shape[2]:
            raise FormersError("the state has another width than the model: it is of another; use initial_state.")
        return torch.cat([self.states.to(x.dtype), x], dim=1)

    def moved(self, both: Tensor, valid: Tensor | None) -> Tail:
        """The tail behind the real tokens of x, from `both` (batch, n + length, width), which is what `before` made of it.

        valid (batch, length) marks the real tokens, which come first in every row; None where all are. Without history of gradients.
        """
        n, both = self.states.shape[1], both.detach()
        if valid is None:
            return Tail(both[:, both.shape[1] - n :].clone())  # a view would keep all of `both`
        index = valid.sum(dim=1, keepdim=True) + torch.arange(n, device=both.device)
        return Tail(both.gather(1, index[:, :, None].expand(-1, -1, both.shape[2])))

    def reset(self, done: Tensor) -> Tail:
        """The tail in which the rows marked in done (batch,) are zeros."""
        return Tail(self.states.masked_fill(done[:, None, None], 0))

    def map(self, change: Callable[[Tensor], Tensor]) -> Tail:
        """The tail with its tensor, batch first, changed."""
        return Tail(change(self.states))


class Entry(Protocol):
    """What one sublayer leaves behind at one depth step; keys and values, or whatever else its continuation needs.

    A dataclass marked `@stored`, so that a training run that carries it can be saved and resumed.
    """

    def reset(self, done: Tensor) -> Entry:
        """The entry in which the rows marked in done (batch,) are empty."""
        ...

    def map(self, change: Callable[[Tensor], Tensor]) -> Entry:
        """The entry with each of its tensors, batch first, changed."""
        ...


@stored
@dataclass(frozen=True, eq=False)
class State:
    """The exact continuation of a stream: what every sublayer left behind, and where the next token stands."""

    batch: int
    steps: tuple[tuple[Entry | None, ...], ...] = ()
    """By depth step, then by sublayer."""
    next: int | Tensor = 0
    """Position of the next token; (batch,) once the rows differ."""
    bound: int = 0
    """No row has read more tokens than this: a plain integer, so that nobody looks into a tensor."""

    @property
    def empty(self) -> bool:
        """Whether nothing has been read."""
        return len(self.steps) == 0  # `not` of a tuple is beyond torch.compile

    def places(self, length: int, device: torch.device) -> Positions:
        """The positions of the next `length` tokens."""
        if isinstance(self.next, int):
            return Range(self.next, length)
        return Index(self.next[:, None] + torch.arange(length, device=device), self.bound + length)

    def reset(self, done: Tensor) -> State:
        """The state in which the rows marked in done (batch,) bool start anew."""
        if done.shape != (self.batch,) or done.dtype != torch.bool:
            raise FormersError(f"reset got {done.dtype} of shape {tuple(done.shape)}: give one bool a row, shape ({self.batch},).")
        if self.empty:
            return self
        start = torch.as_tensor(self.next, device=done.device).expand(self.batch).masked_fill(done, 0)
        steps = tuple(tuple(None if e is None else e.reset(done) for e in step) for step in self.steps)
        # The one look into a tensor, once an episode: else the bound would grow for ever, and tables of positions with it.
        return replace(self, steps=steps, next=start, bound=int(start.max()))

    def map(self, change: Callable[[Tensor], Tensor], batch: int | None = None) -> State:
        """The state with each of its tensors, batch first, changed."""
        steps = tuple(tuple(None if e is None else e.map(change) for e in step) for step in self.steps)
        start = change(self.next) if isinstance(self.next, Tensor) else self.next
        return replace(self, batch=self.batch if batch is None else batch, steps=steps, next=start)

    def select(self, rows: Tensor) -> State:
        """The state of the given rows (n,), each as often as it is named."""
        return self.map(lambda t: t.index_select(0, rows), batch=len(rows))


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
    grown = x.new_empty(*x.shape[:2], size, x.shape[3])
    grown[:, :, : x.shape[2]] = x
    return grown
