"""What a stream leaves behind for its continuation: a value that goes in and comes out, indexed by depth step.

No module stores state. Keys, values and hidden states of tokens are in cache.py; here are states of fixed size, and the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from formers.core.errors import FormersError
from formers.core.positions import Index, Positions, Range
from formers.core.stored import stored

K = TypeVar("K")


def expect(kind: type[K], past: Any) -> K:
    """An entry of a state as the kind that a sublayer leaves behind; another kind is refused."""
    if not isinstance(past, kind):
        raise FormersError(
            f"the state holds a {type(past).__name__} where this model keeps a {kind.__name__}: it is of another model; use initial_state."
        )
    return past


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
    origin: int = 0
    """Position of the first token of a row; more than 0 where a memory of zeros comes before it."""
    shape: str | None = None
    """The fields of the spec that a continuation must agree in (`Spec.state_shape`); None in states saved by earlier versions."""

    episode: Tensor | None = None
    """The id (batch,) of the episode that each row is in, where tokens came with such."""
    first: Tensor | None = None
    """The position (batch,) that this episode began at: nothing before it is seen."""

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
        start = torch.as_tensor(self.next, device=done.device).expand(self.batch).masked_fill(done, self.origin)
        steps = tuple(tuple(None if e is None else e.reset(done) for e in step) for step in self.steps)
        # The one look into a tensor, once an episode: else the bound would grow for ever, and tables of positions with it.
        first = None if self.first is None else self.first.masked_fill(done, self.origin)
        return replace(self, steps=steps, next=start, bound=int(start.max()), first=first)

    def map(self, change: Callable[[Tensor], Tensor], batch: int | None = None) -> State:
        """The state with each of its tensors, batch first, changed."""
        steps = tuple(tuple(None if e is None else e.map(change) for e in step) for step in self.steps)
        start = change(self.next) if isinstance(self.next, Tensor) else self.next
        episode, first = (None if t is None else change(t) for t in (self.episode, self.first))
        return replace(self, batch=self.batch if batch is None else batch, steps=steps, next=start, episode=episode, first=first)

    def to(self, *args: Any, **kwargs: Any) -> State:
        """The state on another device or in another floating-point type, given as to `torch.Tensor.to`."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return self.map(lambda t: t.to(device, dtype if t.is_floating_point() else None, non_blocking))

    def select(self, rows: Tensor) -> State:
        """The state of the given rows (n,), each as often as it is named."""
        return self.map(lambda t: t.index_select(0, rows), batch=len(rows))
