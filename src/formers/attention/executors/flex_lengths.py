"""Rows of different lengths, for patterns that depend on the length: tables and blocks for every number of blocks, made once.

A row's sets depend on its number N of blocks alone. So the tables of all N = 0, 1, ... are computed as if they were the rows of one batch,
and cached. A batch then looks up the tables of its rows; no value is read by the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.attention.executors.flex_kernel import dynamic
from formers.attention.executors.flex_lists import Marks, marks
from formers.attention.executors.flex_masks import PositionMask, position_mask
from formers.core import Range
from formers.core.tables import cached
from formers.patterns import BigBird, Pattern
from formers.patterns.structure import inner_patterns

LARGEST = 1 << 25
"""The largest number of elements of the tables of all lengths."""


def by_row(
    pattern: Pattern, ends: Tensor, queries: Range, keys: Range, heads: int, device: torch.device, size: int
) -> tuple[PositionMask, Marks]:
    """The sets, and the visible blocks (batch, heads or 1, blocks, blocks), of rows that end at some positions (batch,)."""
    block = common_block(pattern)
    if block is None or torch.compiler.is_compiling() or _table_size(block, max(queries.stop, keys.stop), heads) > LARGEST:
        bound = pattern.of(ends[:, None, None, None])
        return position_mask(bound, queries, keys, heads, device), marks(bound, queries, keys, heads, device, size)
    mask, found = _every_length(pattern, block, queries, keys, heads, device, size)
    row_blocks = (ends + block - 1) // block
    return of_rows(mask, dynamic(row_blocks.to(torch.int32), 0)), Marks(*(x.index_select(0, row_blocks) for x in found))


def of_rows(mask: PositionMask, rows: Tensor) -> PositionMask:
    """A mask that gets the number rows[batch] in place of the batch."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask(rows[batch], head, i, j)

    return seen


def common_block(pattern: Pattern) -> int | None:
    """The block of the patterns that depend on the length of the row; None if their blocks differ."""
    blocks = set(_blocks(pattern))
    return blocks.pop() if len(blocks) == 1 else None


def known_by_length(pattern: Pattern) -> bool:
    """Whether all patterns that depend on the length of the row, among those that a pattern combines, have tables."""
    inner = inner_patterns(pattern)
    return all(map(known_by_length, inner)) if inner else isinstance(pattern, BigBird) or not pattern.by_length


def _blocks(pattern: Pattern) -> list[int]:
    own = [pattern.block] if isinstance(pattern, BigBird) and pattern.by_length else []
    return own + [block for inner in inner_patterns(pattern) for block in _blocks(inner)]


def _table_size(block: int, stop: int, heads: int) -> int:
    return heads * (-(-stop // block) + 1) ** 3


@cached(64)
def _every_length(
    pattern: Pattern, block: int, queries: Range, keys: Range, heads: int, device: torch.device, size: int
) -> tuple[PositionMask, Marks]:
    """The sets and visible blocks of rows of 0, 1, ... blocks, with the number of blocks in place of the batch."""
    with torch.inference_mode(False):  # tables first computed in evaluation are also used in training
        ends = torch.arange(-(-max(queries.stop, keys.stop) // block) + 1, device=device) * block
        bound = pattern.of(ends[:, None, None, None])
        some, every = marks(bound, queries, keys, heads, device, size)
        return position_mask(bound, queries, keys, heads, device), Marks(
            some.expand(len(ends), -1, -1, -1), every.expand(len(ends), -1, -1, -1)
        )
