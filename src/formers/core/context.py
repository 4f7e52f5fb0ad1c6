"""The context of a forward pass, and the normal form of padded batches.

Padded rows are compacted: their real tokens are moved to the front, the row is computed as if it were padded on the right, and the
result is moved back. So a row padded on the left, on the right or in the middle equals the row alone, positions stay contiguous
integers, and under a causal pattern no real token sees padding, so that no mask is needed.
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
"""The target value that is excluded from the loss."""
ENCODER = "encoder "
"""Prefix of the names of values recorded, and of losses added, by the encoder of an encoder-decoder."""


class Source(NamedTuple):
    """The encoder's output (batch, n, dim), real tokens first: the input of a decoder's cross-attention."""

    hidden: Tensor
    valid: Tensor | None
    final: tuple[tuple[Tensor, ...], ...] = ()
    """The final states (batch, width) of each recurrent layer of the encoder, after each row's last real token; two for an LSTM."""


class Watch:
    """Records intermediate values by name and depth step.

    A value is passed as a function, which is called only if the name is recorded.
    """

    def __init__(self, only: str | tuple[str, ...] | None = None) -> None:
        self.only = only
        """If given, only names that end in it, or in one of them, are recorded."""
        self.notes: dict[str, dict[int, Any]] = {}

    def records(self, name: str) -> bool:
        """Whether values with this name are recorded."""
        return self.only is None or name.endswith(self.only)

    def records_only(self, *names: str) -> bool:
        """Whether no other names than these are recorded."""
        only = (self.only,) if isinstance(self.only, str) else self.only
        return only is not None and all(name in names for name in only)

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        """Records a value under (name, step)."""
        if self.records(name):
            self.notes.setdefault(name, {})[step] = value()

    def inside(self, name: str) -> Watch:
        """A Watch for a second stack: it records here too, with names that begin with `name`."""
        return _Inside(self, name)


class _Inside(Watch):
    """Records into another Watch, with a prefix on the names."""

    def __init__(self, outer: Watch, name: str) -> None:
        super().__init__(outer.only)
        self.outer, self.name = outer, name

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        self.outer.note(f"{self.name} {name}", step, value)


@dataclass(frozen=True)
class Context:
    """The forward context: what every sublayer needs beside its input (positions, padding mask, source), and where it adds results.

    Data that only one kind of part needs is in a side channel: an instance of a class of that part, in `channels`.
    """

    positions: Positions
    valid: Tensor | None = None
    """(batch, length) bool, True = a real token; None if all are. Real tokens come first in every row."""
    keep: bool = False
    """Whether sublayers return their state."""
    source: Source | None = None
    watch: Watch | None = None
    """Records values for `model.inspect`; None in other passes."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """Extra losses that sublayers add, by name; they are returned with the output."""
    update: int | None = None
    """The number of the training step, the key of random numbers that are drawn anew at each step; None outside of training."""
    episodes: Episodes | None = None
    """The episode of each token, if rows contain several: no token sees another episode."""
    channels: dict[type, Any] = field(default_factory=dict)
    """The side channels by class: `channels.get(Taps)` is the `Taps` of this pass, or None."""

    def with_channels(self, *values: Any) -> Context:
        """The context with more side channels."""
        return replace(self, channels={**self.channels, **{type(value): value for value in values}})


@dataclass(frozen=True)
class Compaction:
    """A permutation of each row that puts real tokens first, its inverse, and the mask of real tokens after it.

    The permutation may be cut to its first indices if all others are padding.
    """

    order: Tensor
    inverse: Tensor
    valid: Tensor

    def first(self, places: int) -> Compaction:
        """The compaction cut to the first indices; no row may have more real tokens."""
        return Compaction(self.order[:, :places], self.inverse, self.valid[:, :places])

    def apply(self, x: Tensor) -> Tensor:
        """x (batch, length, ...) with the real tokens of each row first."""
        return _gather(x, self.order)

    def undo(self, x: Tensor) -> Tensor:
        """x in the original order, zero at padding."""
        return self.back(self.blank(x))

    def back(self, x: Tensor) -> Tensor:
        """x in the original order with its values at padding; zero where the padding was cut off."""
        spare = self.inverse.shape[1] - x.shape[1]
        return _gather(F.pad(x, (0, 0) * (x.dim() - 2) + (0, spare)) if spare else x, self.inverse)

    def blank(self, x: Tensor) -> Tensor:
        """Compacted x, set to zero after the real tokens of each row."""
        return x.masked_fill(~self.valid.view(self.valid.shape + (1,) * (x.dim() - 2)), 0)


def compact(mask: Tensor) -> Compaction:
    """The compaction for a mask (batch, length) of real tokens."""
    order = torch.argsort(mask.logical_not().to(torch.uint8), dim=1, stable=True)
    return Compaction(order, torch.argsort(order, dim=1), mask.gather(1, order))


def norm(x: Tensor) -> Tensor:
    """The Euclidean norm (batch, length) of every token's vector x (batch, length, dim)."""
    return x.float().norm(dim=-1)


def _gather(x: Tensor, order: Tensor) -> Tensor:
    index = order.view(order.shape + (1,) * (x.dim() - 2))
    return x.gather(1, index.expand(order.shape + x.shape[2:]))
