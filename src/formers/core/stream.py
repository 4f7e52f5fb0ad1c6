"""What a stack knows about the tokens it is reading, and the normal form of padded batches.

Padded rows are *compacted*: their real tokens are moved to the front, everything is computed as if the padding had always been on
the right, and the result is moved back. A row padded on the left, on the right or in the middle then equals the row alone,
positions stay contiguous integers, and under a causal pattern no real token can see padding, so that no mask is needed at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.core.episodes import Episodes
from formers.core.positions import Positions

T = TypeVar("T")
IGNORED = -100
"""The target that counts for no loss."""
ENCODER = "encoder "
"""Stands before the names of what the encoder of a pair notes and costs."""


class Source(NamedTuple):
    """What a decoder reads beside its own stream: the encoder's output (batch, n, dim), real tokens first."""

    hidden: Tensor
    valid: Tensor | None
    final: tuple[tuple[Tensor, ...], ...] = ()
    """By recurrent layer of the encoder, its states (batch, width) behind each row's last real token; of an LSTM two."""


class Watch:
    """Looks on as a stream passes: sublayers offer what they compute, which is noted by name and depth step.

    A value comes as a function, so that what nobody wants costs nothing.
    """

    def __init__(self, only: str | tuple[str, ...] | None = None) -> None:
        self.only = only
        """Where it is given, only names that end in it are noted, or in one of them."""
        self.notes: dict[str, dict[int, Any]] = {}

    def wants(self, name: str) -> bool:
        """Whether what is offered under a name is noted."""
        return self.only is None or name.endswith(self.only)

    def only_wants(self, *names: str) -> bool:
        """Whether nothing is noted but what is offered under some names."""
        only = (self.only,) if isinstance(self.only, str) else self.only
        return only is not None and all(name in names for name in only)

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        """Keeps the value under (name, step)."""
        if self.wants(name):
            self.notes.setdefault(name, {})[step] = value()

    def inside(self, name: str) -> Watch:
        """A watch for a second stack, whose notes stand here, too, under names that begin with `name`."""
        return _Inside(self, name)


class _Inside(Watch):
    """Notes in another watch, under a longer name."""

    def __init__(self, outer: Watch, name: str) -> None:
        super().__init__(outer.only)
        self.outer, self.name = outer, name

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        self.outer.note(f"{self.name} {name}", step, value)


@dataclass(frozen=True)
class Stream:
    """Tokens on their way through a stack: where they stand, which are real, what else is read, and what is to be kept."""

    positions: Positions
    valid: Tensor | None = None
    """(batch, length) bool, True = a real token; None where all are. Real tokens come first in every row."""
    keep: bool = False
    """Whether sublayers return what a continuation of the stream needs."""
    source: Source | None = None
    watch: Watch | None = None
    """Who looks on, where somebody does."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """Named extra losses that sublayers add as the stream passes: returned with the output, never stored on a module."""
    tapped: tuple[int, ...] = ()
    """The depth steps whose outputs somebody asks for."""
    taps: dict[int, Tensor] = field(default_factory=dict)
    """These outputs (batch, length, dim) by step, as the head would be given them if the stack ended there."""
    starts: dict[int, Tensor] = field(default_factory=dict)
    """Where rows start, (batch, 1), by the offset that was drawn from; the encoder and the decoder of a pass share it."""
    update: int | None = None
    """The number of the training step, by which parts key what they draw anew at each; None where nobody counts."""
    decided: dict[tuple[str, int], Any] | None = None
    """What a first pass over these tokens has decided, by name and depth step; None where there is no second one."""

    episodes: Episodes | None = None
    """Which tokens belong to one episode, where a stream has such: nobody sees another's."""

    final: list[tuple[Tensor, ...]] | None = None
    """A list for the last states of recurrent sublayers, (h,) or (h, c), each (batch, dim), where a decoder begins with them."""

    def once(self, name: str, step: int, decide: Callable[[], T]) -> T:
        """What `decide` gives, and, in a second pass over the same tokens, what it gave in the first.

        A second pass may compute its inputs back from outputs, and what is decided by comparing them could come out otherwise. `decide`
        draws no random numbers: the second pass, which does not call it, would leave the generator in another state than the first.
        """
        if self.decided is None:
            return decide()
        if (name, step) not in self.decided:
            self.decided[name, step] = decide()
        return self.decided[name, step]


@dataclass(frozen=True)
class Compaction:
    """An order of each row that puts real tokens first, its inverse, and which places then hold real tokens.

    The order may name the first places only, where all others hold padding.
    """

    order: Tensor
    inverse: Tensor
    valid: Tensor

    def first(self, places: int) -> Compaction:
        """The compaction to the first places, behind which no row has a real token."""
        return Compaction(self.order[:, :places], self.inverse, self.valid[:, :places])

    def apply(self, x: Tensor) -> Tensor:
        """Rows (batch, length, ...) with their real tokens first."""
        return _gather(x, self.order)

    def undo(self, x: Tensor) -> Tensor:
        """Rows in their original order, zero where there was padding."""
        return self.back(self.blank(x))

    def back(self, x: Tensor) -> Tensor:
        """Rows in their original order, padding too: zero where it was left out."""
        spare = self.inverse.shape[1] - x.shape[1]
        return _gather(F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare)) if spare else x, self.inverse)

    def blank(self, x: Tensor) -> Tensor:
        """Compacted rows, zero behind their real tokens, whatever stood there."""
        return x.masked_fill(~self.valid.view(self.valid.shape + (1,) * (x.dim() - 2)), 0)


def compact(mask: Tensor) -> Compaction:
    """The compaction of rows whose real tokens are marked in mask (batch, length)."""
    order = torch.argsort(mask.logical_not().to(torch.uint8), dim=1, stable=True)
    return Compaction(order, torch.argsort(order, dim=1), mask.gather(1, order))


def norm(x: Tensor) -> Tensor:
    """The Euclidean length (batch, length) of every token's vector x (batch, length, dim)."""
    return x.float().norm(dim=-1)


def _gather(x: Tensor, order: Tensor) -> Tensor:
    index = order.view(order.shape + (1,) * (x.dim() - 2))
    return x.gather(1, index.expand(order.shape + x.shape[2:]))
