"""Some tokens of every row of a batch, one behind the other, or side by side in rows as long as the longest needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from formers.core import Positions, compact
from formers.core.positions import EMPTY, Scattered


@dataclass(frozen=True)
class Chosen:
    """Which tokens of rows (batch, length) are meant."""

    active: Tensor
    """(batch, length) bool."""
    count: int
    """How many they are in all."""
    order: Tensor
    """(batch, most): the places of each row's tokens, in order, and any places behind them."""
    held: Tensor
    """(batch, most) bool: where one of them is named."""

    @property
    def even(self) -> bool:
        """Whether every row has as many."""
        return self.count == self.held.numel()

    def flat(self, x: Tensor) -> Tensor:
        """The vectors (count, dim) of the tokens, row by row, of x (batch, length, dim)."""
        return x[self.active]

    def padded(self, flat: Tensor) -> Tensor:
        """Vectors (count, dim) as rows (batch, most, dim), 0 behind those of a row."""
        if self.even:
            return flat.view(*self.held.shape, flat.shape[1])
        rows = flat.new_zeros(*self.held.shape, flat.shape[1])
        rows[self.held] = flat
        return rows

    def unpadded(self, rows: Tensor) -> Tensor:
        """Rows (batch, most, dim) as vectors (count, dim)."""
        return rows.reshape(-1, rows.shape[2]) if self.even else rows[self.held]

    def positions(self, all_: Positions) -> Scattered:
        """The positions of the tokens (batch, most), EMPTY behind those of a row."""
        index = all_.tensor(self.order.device).expand(self.active.shape).gather(1, self.order)
        return Scattered(index.masked_fill(~self.held, EMPTY), all_.stop)


@dataclass
class Kept:
    """Keys and values of the tokens of one pass, kept from step to step for those that stay as they are."""

    kv: Tensor | None = None
    """(batch, length, widths), side by side; None where they are not known."""
    changed: Tensor | None = None
    """(batch, length) bool: the tokens that are not what kv was made of any more."""
    signal: Tensor | None = None
    """(dim): the part of every token that is another at each step, and of which kv knows nothing; None where there is no such part."""

    def made(self, project: Callable[[Tensor], Tensor], x: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
        """What `project`, which treats each token alone, makes of x (batch, length, dim); added(s) = project(x + s) - project(x).

        How a token's are rounded depends on when it has changed, and not on any other token: the future would leak into their last bits.
        """
        more = None if self.signal is None else added(self.signal)
        if self.kv is None or self.changed is None:
            made = project(x)
            self.kv = made if more is None else made - more
            return made
        new, old = project(x[self.changed]), self.kv
        self.kv = old.clone()  # what it was may have been left behind for a continuation
        self.kv[self.changed] = new if more is None else new - more
        if more is None:
            return self.kv
        made = old + more
        made[self.changed] = new
        return made

    def rows(self, which: Tensor) -> Kept:
        """The same of some rows."""
        return Kept() if self.kv is None or self.changed is None else Kept(self.kv[which], self.changed[which])


def choose(active: Tensor) -> Chosen:
    """The tokens marked in active (batch, length) bool; rows have room for one at the least."""
    packed, counts = compact(active), active.sum(dim=1)
    most = max(1, int(counts.max()))
    return Chosen(active, int(counts.sum()), packed.order[:, :most], packed.valid[:, :most])
