"""The request to an executor, and the boolean mask of a pattern at given positions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import ExplicitPositions, Positions, Range, StridedPositions
from formers.core.tables import cached
from formers.patterns import Causal, Full, Pattern
from formers.patterns.structure import uniform_block
from formers.score import ByDistance

LARGEST = 1 << 22
"""The number of pairs of the largest table that is cached."""


class Request(NamedTuple):
    """One attention call: which keys are visible (pattern, positions, valid), the term added to the scores, the scale and dropout rate."""

    pattern: Pattern
    queries: Positions
    keys: Positions
    heads: int
    scale: float
    valid: Tensor | None = None
    """(batch, keys) bool, True = a real key."""
    bias: Tensor | ByDistance | None = None
    """Added to the scores; broadcasts to (batch, heads, queries, keys)."""
    dropout: float = 0.0
    first: Tensor | None = None
    """(batch, queries): the first position that each query may see, if rows contain several episodes."""
    text: str | None = None
    """The text of the pattern, before it is bound to a length; None if it is not known in advance, as torch.compile needs it."""

    @property
    def square(self) -> bool:
        """Whether queries and keys are the same contiguous tokens."""
        return isinstance(self.queries, Range) and self.queries == self.keys

    @property
    def open(self) -> bool:
        """Whether every query sees every key, known from types and integers alone."""
        return self.valid is None and self.first is None and self.covered

    @property
    def covered(self) -> bool:
        """Whether the pattern allows every query to see every key, known from types and integers alone."""
        if not isinstance(self.queries, Range) or isinstance(self.keys, ExplicitPositions):
            return False
        if torch.compiler.is_compiling() and not isinstance(self.pattern, (Full, Causal)):
            return False  # a comparison of positions would be a graph of its own
        if isinstance(self.keys, StridedPositions):
            return self.pattern.covers(self.queries, self.keys) and self.pattern.covers(self.queries, self.keys.near)
        return self.pattern.covers(self.queries, self.keys)

    @property
    def offset(self) -> int:
        """The distance from the first query back to the first key, for contiguous positions."""
        assert isinstance(self.queries, Range)
        assert isinstance(self.keys, Range)
        return self.queries.start - self.keys.start

    def added(self, dtype: torch.dtype, allowed: Tensor | None = None) -> Tensor | None:
        """The term added to the scores, as a tensor; minus infinity where `allowed` is False."""
        if isinstance(self.bias, ByDistance):
            return self.bias.tensor(allowed).to(dtype)
        if self.bias is None or allowed is None:
            return None if self.bias is None else self.bias.to(dtype)
        return self.bias.to(dtype).masked_fill(~allowed, float("-inf"))

    @property
    def uneven(self) -> bool:
        """Whether the pattern depends on the end of the row, and rows end where `valid` does."""
        return self.valid is not None and self.pattern.by_length

    def ends(self) -> Tensor:
        """The position after each row's last real key, (batch,); 0 for a row without keys."""
        assert self.valid is not None
        return (self.keys.tensor(self.valid.device) + 1).masked_fill(~self.valid, 0).amax(dim=-1)

    def mask_words(self) -> str:
        """A short description of `mask`."""
        if self.open:
            return "without a mask: every query sees every key"
        tables = self.heads if self.pattern.by_head else 1
        return (
            f"with a mask of {self.queries.length:,} x {self.keys.length:,} bytes"
            + (f" for each of {tables} heads" if tables > 1 else "")
            + (", different for every row" if self.uneven or self.first is not None else "")
        )

    def mask(self, device: torch.device) -> Tensor | None:
        """True where a query may see a key, broadcasting to (batch, heads, queries, keys); None if all are visible."""
        if self.open:
            return None
        if self.first is not None:
            own = self.keys.tensor(device)[..., None, None, :] >= self.first[:, None, :, None]
            others = self._replace(first=None).mask(device)
            return own if others is None else own & others
        ends = None if not self.pattern.by_length else self.keys.stop if self.valid is None else self.ends()[:, None, None, None]
        pattern = self.pattern if ends is None else self.pattern.of(ends)
        if self.valid is not None and ends is None and self.covered:
            return self.valid[:, None, None, :]
        if isinstance(self.queries, Range) and isinstance(self.keys, Range):
            if ends is not None:
                allowed = _table(pattern, self.queries, self.keys, self.heads, device)
            else:
                large = self.queries.length * self.keys.length > LARGEST
                make = _table if large or torch.compiler.is_compiling() else _cached_table
                allowed = make(pattern, self.queries, self.keys, self.heads, device)
        else:
            i, j = self.queries.tensor(device), self.keys.tensor(device)
            allowed = allowed_pairs(pattern, i, j, self.heads)
            allowed = allowed & (j >= 0)[..., None, None, :]
        if self.valid is not None:
            allowed = allowed & self.valid[:, None, None, :]
        if isinstance(ends, Tensor):  # positions after the end of the row are not part of it
            allowed = allowed & (self.queries.tensor(device)[..., None, :, None] < ends)
        return allowed


def allowed_pairs(pattern: Pattern, i: Tensor, j: Tensor, heads: int) -> Tensor:
    """Whether i sees j, for query positions (..., q) and key positions (..., k), as (..., heads or 1, q, k)."""
    head = torch.arange(heads, device=i.device)[:, None, None] if pattern.by_head else 0
    i, j = i[..., None, :, None], j[..., None, None, :]
    return torch.as_tensor(pattern.allows(i, j, head))


def _table(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Tensor:
    block = uniform_block(pattern)
    if block == 1:
        return allowed_pairs(pattern, queries.tensor(device), keys.tensor(device), heads)
    # One position of every block is computed; the others are equal to it.
    a, c = (Range(p.start // block, (p.stop - 1) // block - p.start // block + 1) for p in (queries, keys))
    blocks = allowed_pairs(pattern, a.tensor(device) * block, c.tensor(device) * block, heads)
    i, j = (p.tensor(device) // block - first.start for p, first in ((queries, a), (keys, c)))
    return blocks[..., i[:, None], j]


@cached(64)
def _cached_table(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a table first computed in evaluation is also used in training
        return _table(pattern, queries, keys, heads, device)
