"""Where tokens stand: absolute integer positions, as plain integers where they are contiguous.

Which executor runs is decided by the type (`Range` or `Index`) and by integers, never by looking into a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from formers.core.stored import stored

EMPTY = -1
"""The position of a place where no token stands: no pattern lets it be seen."""


@stored
@dataclass(frozen=True)
class Range:
    """Positions start, start+1, ..., start+length-1, the same for every row of the batch."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        """The first position after the last one."""
        return self.start + self.length

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,)."""
        return torch.arange(self.start, self.start + self.length, device=device)


@stored
@dataclass(frozen=True, eq=False)
class Index:
    """Positions one by one, (length,) or (batch, length), -1 where no token stands; none reaches `stop`."""

    index: Tensor
    stop: int

    @property
    def length(self) -> int:
        """How many places there are in a row."""
        return self.index.shape[-1]

    def tensor(self, device: torch.device | None = None) -> Tensor:
        """The positions as a tensor (length,) or (batch, length)."""
        return self.index if device is None else self.index.to(device)


Positions = Range | Index


def join(first: Positions, second: Positions, batch: int) -> Positions:
    """The positions of two stretches of tokens, one behind the other."""
    if isinstance(first, Range) and isinstance(second, Range) and first.stop == second.start:
        return Range(first.start, first.length + second.length)
    device = (first if isinstance(first, Index) else second).tensor().device
    rows = [p.tensor(device).expand(batch, -1) for p in (first, second)]
    return Index(torch.cat(rows, dim=1), max(first.stop, second.stop))
