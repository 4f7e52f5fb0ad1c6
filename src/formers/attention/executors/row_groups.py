"""Padded rows whose pattern depends on their length, in groups: the rows of a group have the same pattern and are cut after the longest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.patterns import Pattern


class RowGroup(NamedTuple):
    """Rows of a batch with the same pattern."""

    pattern: Pattern
    rows: list[int]
    length: int
    """The length of the longest row."""
    valid: Tensor | None
    """(rows, length) bool, True = a real key; None if all are."""

    def take(self, x: Tensor) -> Tensor:
        """The rows of x (batch, heads, n, ...), cut."""
        return x[self.rows, :, : self.length]

    def put(self, x: Tensor, y: Tensor) -> None:
        """Writes y (rows, heads, length, ...) into x (batch, heads, n, ...)."""
        x[self.rows, :, : self.length] = y


def row_groups(pattern: Pattern, valid: Tensor) -> list[RowGroup]:
    """The groups of the rows with a real token. It reads the lengths from valid (batch, n)."""
    ends, counts = row_ends(valid).tolist(), valid.sum(dim=1).tolist()
    alike: dict[Pattern, list[int]] = {}
    for row, end in enumerate(ends):
        if end:
            alike.setdefault(pattern.of(end), []).append(row)
    groups = []
    for bound, rows in alike.items():
        n = max(ends[row] for row in rows)
        groups.append(RowGroup(bound, rows, n, None if all(counts[row] == n for row in rows) else valid[rows, :n]))
    return groups


def row_ends(valid: Tensor) -> Tensor:
    """The position after the last real token of each row of valid (batch, n), as (batch,); 0 for a row without one."""
    return torch.arange(1, valid.shape[1] + 1, device=valid.device).masked_fill(~valid, 0).amax(dim=1)


def after_end(valid: Tensor) -> Tensor:
    """The positions (batch, 1, n, 1) after the end of each row of valid (batch, n)."""
    return (torch.arange(valid.shape[1], device=valid.device) >= row_ends(valid)[:, None])[:, None, :, None]
