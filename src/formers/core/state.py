"""The recurrent state of a model: an explicit argument and result of forward, indexed by depth step.

No module stores state. The KV cache and hidden-state memory are in cache.py; this file has the states of fixed size, and `State`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from formers.core.errors import FormersError
from formers.core.positions import ExplicitPositions, Positions, Range
from formers.core.serialise import serialisable

K = TypeVar("K")


def expect(kind: type[K], past: Any) -> K:
    """Checks that an entry of a state has the class that the sublayer returns; raises FormersError otherwise."""
    if not isinstance(past, kind):
        raise FormersError(
            f"the state has a {type(past).__name__} where this model needs a {kind.__name__}: "
            "another model made it; start from initial_state(batch)."
        )
    return past


@serialisable
@dataclass(frozen=True, eq=False)
class RecurrentMemory:
    """The state (batch, dim) of a recurrent cell after the last token of each row; an LSTM has two tensors, h and c."""

    h: Tensor
    c: Tensor | None = None

    @classmethod
    def of(cls, states: tuple[Tensor, ...]) -> RecurrentMemory:
        """A memory of detached states."""
        return cls(*(s.detach() for s in states))

    @property
    def states(self) -> tuple[Tensor, ...]:
        """(h,), or (h, c)."""
        return (self.h,) if self.c is None else (self.h, self.c)

    def reset(self, done: Tensor) -> RecurrentMemory:
        """The memory with the rows marked in done (batch,) set to zero, as before the first token."""
        return self.map(lambda s: s.masked_fill(done[:, None], 0))

    def map(self, change: Callable[[Tensor], Tensor]) -> RecurrentMemory:
        """The memory with `change` applied to each of its tensors, batch first."""
        return RecurrentMemory(change(self.h), None if self.c is None else change(self.c))


@serialisable
@dataclass(frozen=True, eq=False)
class ConvMemory:
    """The last n input vectors (batch, n, width) of a causal convolution, the newest last; zeros before the first token."""

    states: Tensor

    @classmethod
    def blank(cls, x: Tensor, n: int) -> ConvMemory:
        """The memory before the first token of x (batch, length, width): n zero vectors."""
        return cls(x.new_zeros(x.shape[0], n, x.shape[2]))

    def prepend_to(self, x: Tensor) -> Tensor:
        """The remembered inputs followed by x (batch, length, width): (batch, n + length, width)."""
        if self.states.shape[2] != x.shape[2]:
            raise FormersError("the state has another width than the model: another model made it; start from initial_state(batch).")
        return torch.cat([self.states.to(x.dtype), x], dim=1)

    def advanced(self, both: Tensor, valid: Tensor | None) -> ConvMemory:
        """The memory after the real tokens of x, from `both` (batch, n + length, width), the result of `prepend_to`; detached.

        valid (batch, length) marks the real tokens, which come first in every row; None if all are real.
        """
        n, both = self.states.shape[1], both.detach()
        if valid is None:
            return ConvMemory(both[:, both.shape[1] - n :].clone())  # a view would keep all of `both` alive
        index = valid.sum(dim=1, keepdim=True) + torch.arange(n, device=both.device)
        return ConvMemory(both.gather(1, index[:, :, None].expand(-1, -1, both.shape[2])))

    def reset(self, done: Tensor) -> ConvMemory:
        """The memory with the rows marked in done (batch,) set to zero."""
        return ConvMemory(self.states.masked_fill(done[:, None, None], 0))

    def map(self, change: Callable[[Tensor], Tensor]) -> ConvMemory:
        """The memory with `change` applied to its tensor, batch first."""
        return ConvMemory(change(self.states))


class LayerState(Protocol):
    """The state of one sublayer at one depth step, such as its KV cache.

    It must be a dataclass marked `@serialisable`, so that training runs that carry it can be saved and resumed.
    """

    def reset(self, done: Tensor) -> LayerState:
        """The entry with the rows marked in done (batch,) emptied."""
        ...

    def map(self, change: Callable[[Tensor], Tensor]) -> LayerState:
        """The entry with `change` applied to each of its tensors, batch first."""
        ...


@serialisable
@dataclass(frozen=True, eq=False)
class State:
    """All that is needed to continue a sequence exactly: the state of every sublayer, and the position of the next token."""

    batch: int
    steps: tuple[tuple[LayerState | None, ...], ...] = ()
    """By depth step, then by sublayer."""
    next: int | Tensor = 0
    """Position of the next token; a tensor (batch,) once the rows differ."""
    bound: int = 0
    """Upper bound of `next` over the rows: a plain integer, so that no tensor has to be read."""
    origin: int = 0
    """Position of the first token of a row; more than 0 if a memory of zeros precedes it."""
    shape: str | None = None
    """The fields of the spec that must be the same to continue (`Spec.state_shape`); None in states saved by earlier versions."""

    episode: Tensor | None = None
    """The id (batch,) of the current episode of each row; None without episodes."""
    first: Tensor | None = None
    """The position (batch,) of the first token of that episode; earlier tokens are masked."""

    @property
    def empty(self) -> bool:
        """Whether the state is before the first token."""
        return len(self.steps) == 0  # torch.compile does not support `not` of a tuple

    def next_positions(self, length: int, device: torch.device) -> Positions:
        """The positions of the next `length` tokens."""
        if isinstance(self.next, int):
            return Range(self.next, length)
        return ExplicitPositions(self.next[:, None] + torch.arange(length, device=device), self.bound + length)

    def reset(self, done: Tensor) -> State:
        """The state with the rows marked in done (batch,) bool set back to the initial state."""
        if done.shape != (self.batch,) or done.dtype != torch.bool:
            raise FormersError(f"reset got {done.dtype} of shape {tuple(done.shape)}: give one bool a row, shape ({self.batch},).")
        if self.empty:
            return self
        start = torch.as_tensor(self.next, device=done.device).expand(self.batch).masked_fill(done, self.origin)
        steps = tuple(tuple(None if e is None else e.reset(done) for e in step) for step in self.steps)
        # Reads a tensor, but only once per episode: otherwise the bound, and with it the position tables, would grow for ever.
        first = None if self.first is None else self.first.masked_fill(done, self.origin)
        return replace(self, steps=steps, next=start, bound=int(start.max()), first=first)

    def map(self, change: Callable[[Tensor], Tensor], batch: int | None = None) -> State:
        """The state with `change` applied to each of its tensors, batch first."""
        steps = tuple(tuple(None if e is None else e.map(change) for e in step) for step in self.steps)
        start = change(self.next) if isinstance(self.next, Tensor) else self.next
        episode, first = (None if t is None else change(t) for t in (self.episode, self.first))
        return replace(self, batch=self.batch if batch is None else batch, steps=steps, next=start, episode=episode, first=first)

    def to(self, *args: Any, **kwargs: Any) -> State:
        """The state on another device or in another floating-point dtype; arguments as for `torch.Tensor.to`."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return self.map(lambda t: t.to(device, dtype if t.is_floating_point() else None, non_blocking))

    def select(self, rows: Tensor) -> State:
        """The state of the rows with the given indices (n,), which may repeat."""
        return self.map(lambda t: t.index_select(0, rows), batch=len(rows))
