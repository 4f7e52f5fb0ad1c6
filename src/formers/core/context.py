"""The context of a forward pass, and the normal form of padded batches.

Padded rows are *compacted*: their real tokens are moved to the front, everything is computed as if the padding had always been on
the right, and the result is moved back. A row padded on the left, on the right or in the middle then equals the row alone,
positions stay contiguous integers, and under a causal pattern no real token can see padding, so that no mask is needed at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.core.episodes import Episodes
from formers.core.positions import Positions

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
class Context:
    """What every sublayer of a forward pass needs beside its input: positions, padding, the source, and where results are gathered.

    What only one kind of part needs travels in a side channel: a value of that part's own class, in `channels`.
    """

    positions: Positions
    valid: Tensor | None = None
    """(batch, length) bool, True = a real token; None where all are. Real tokens come first in every row."""
    keep: bool = False
    """Whether sublayers return their state."""
    source: Source | None = None
    watch: Watch | None = None
    """Records what `model.inspect` shows; None in other passes."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """Named extra losses that sublayers add: returned with the output, never stored on a module."""
    update: int | None = None
    """The number of the training step, which keys the random numbers that are drawn anew at each step; None outside of training."""
    episodes: Episodes | None = None
    """The episode of each token, where rows hold several: no token sees another episode."""
    channels: dict[type, Any] = field(default_factory=dict)
    """The side channels by class: `channels.get(Taps)` is the `Taps` of this pass, or None."""

    def with_channels(self, *values: Any) -> Context:
        """The context with further side channels."""
        return replace(self, channels={**self.channels, **{type(value): value for value in values}})


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
