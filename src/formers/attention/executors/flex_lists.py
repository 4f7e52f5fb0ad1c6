"""Lists of blocks for FlexAttention: which blocks of keys each block of queries sees, partly or wholly, and the reverse for gradients.

A block is visible if one of its pairs is allowed, and wholly visible if all are; in wholly visible blocks the mask function is not called.
Both are found by evaluating the predicate for every pair, once for a pattern and a length rounded up to whole blocks. Of BigBird only its
table of blocks is evaluated, on the device and for all rows at once if they have different lengths: its lists may contain blocks without a
pair, which the mask function then masks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.attention.executors.flex_masks import block_table, heads_by_pattern
from formers.attention.executors.handles import HandleTable
from formers.attention.request import allowed_pairs
from formers.core import Range
from formers.core.tables import cached
from formers.patterns import Alternate, BigBird, Causal, Column, Full, Intersection, Local, Pattern, PerHead, Strided, Union
from formers.patterns.structure import inner_patterns


class Marks(NamedTuple):
    """Which blocks are visible, each (batch or 1, heads or 1, blocks of queries, blocks of keys) bool."""

    some: Tensor
    """Contains every block with an allowed pair."""
    every: Tensor
    """Only blocks with nothing but allowed pairs."""

    def within(self, others: Marks) -> Marks:
        """The blocks of the pairs that are allowed in both."""
        return Marks(self.some & others.some, self.every & others.every)


class Band(NamedTuple):
    """The distances i-j that a term of the scores covers: -fore <= i-j < reach."""

    reach: int
    fore: int

    def marks(self, queries: Range, keys: Range, size: int, device: torch.device) -> Marks:
        """The blocks with a pair, and with nothing but pairs, at these distances."""
        first, there = (torch.arange(p.start, p.stop, size, device=device) for p in (queries, keys))
        back = (first[:, None] - there)[None, None]  # from the first query of a block to the first key
        least, most = back - (size - 1), back + (size - 1)
        return Marks((least < self.reach) & (most >= -self.fore), (most < self.reach) & (least >= -self.fore))


Lists = tuple[Tensor | None, ...]
"""Numbers and indices of blocks: of keys partly visible, of keys wholly visible, of queries partly, of queries wholly.

Numbers are (batch or 1, heads or 1, blocks), indices (batch or 1, heads or 1, blocks, blocks), the listed ones first. None: no block is
wholly visible.
"""


def block_lists(
    pattern: Pattern,
    queries: Range,
    keys: Range,
    heads: int,
    device: torch.device,
    size: int,
    band: Band | None,
    ragged: bool,
    masked: bool,
) -> Lists:
    """The lists of a pattern over whole blocks of `size` positions.

    If the last block of keys is `ragged`, it contains padding. If other masks apply to every pair (`masked`), no block is wholly visible.
    """
    asked = pattern, *_shifted(pattern, queries, keys), heads, device, size, band, ragged, masked
    return _lists(*asked) if torch.compiler.is_compiling() else _cached_lists(*asked)


def _shifted(pattern: Pattern, queries: Range, keys: Range) -> tuple[Range, Range]:
    """The positions, from 0 if the pattern depends on distances alone: then the segments of a long text share their lists."""
    start = min(queries.start, keys.start) if _by_distance(pattern) else 0
    return Range(queries.start - start, queries.length), Range(keys.start - start, keys.length)


def _by_distance(pattern: Pattern) -> bool:
    inner = inner_patterns(pattern)
    return all(map(_by_distance, inner)) if inner else isinstance(pattern, Full | Causal | Local | Column | Strided)


def _lists(
    pattern: Pattern,
    queries: Range,
    keys: Range,
    heads: int,
    device: torch.device,
    size: int,
    band: Band | None,
    ragged: bool,
    masked: bool,
) -> Lists:
    found = marks(pattern, queries, keys, heads, device, size)
    return listed(found if band is None else found.within(band.marks(queries, keys, size, device)), ragged, masked)


def listed(found: Marks, ragged: bool, masked: bool) -> Lists:
    """The lists of visible blocks; `ragged` and `masked` as in `block_lists`."""
    some, every = found
    if masked:
        return *ordered(some), None, None, *ordered(some.mT), None, None
    if ragged:
        blocks = every.shape[-1]
        every = every & (torch.arange(blocks, device=every.device) < blocks - 1)
    some = some & ~every
    return *ordered(some), *ordered(every), *ordered(some.mT), *ordered(every.mT)


@cached(64)
def _cached_lists(
    pattern: Pattern,
    queries: Range,
    keys: Range,
    heads: int,
    device: torch.device,
    size: int,
    band: Band | None,
    ragged: bool,
    masked: bool,
) -> Lists:
    with torch.inference_mode(False):  # lists first computed in evaluation are also used in training
        return _lists(pattern, queries, keys, heads, device, size, band, ragged, masked)


def ordered(marked: Tensor) -> tuple[Tensor, Tensor]:
    """The number of marked elements of each row, and all indices, those of marked elements first; both contiguous, as kernels need them."""
    order = torch.argsort(marked.to(torch.uint8, memory_format=torch.contiguous_format), dim=-1, descending=True, stable=True)
    return marked.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


def marks(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device, size: int) -> Marks:
    """The visible blocks of a pattern: exact, unless it contains BigBird."""
    if not _has_tables(pattern):
        if torch.compiler.is_compiling():
            return Marks(*_operation(_handle(pattern), queries.start, queries.length, keys.start, keys.length, heads, size, device))
        return _scanned(pattern, queries, keys, heads, device, size)
    if isinstance(pattern, Alternate):
        return marks(pattern.at(0), queries, keys, heads, device, size)
    if isinstance(pattern, BigBird):
        return _pooled(pattern, queries, keys, heads, device, size)
    if isinstance(pattern, PerHead):
        each: dict[int, Marks] = {}
        for inner, own in heads_by_pattern(pattern):
            found = marks(inner, queries, keys, heads, device, size)
            each |= {head: Marks(*(x[:, head if x.shape[1] > 1 else 0] for x in found)) for head in own}
        by_head = zip(*(each[head] for head in range(heads)), strict=True)
        return Marks(*(torch.stack(_same_batch(x), dim=1) for x in by_head))
    first, second = (marks(inner, queries, keys, heads, device, size) for inner in inner_patterns(pattern))
    if isinstance(pattern, Union):
        return Marks(first.some | second.some, first.every | second.every)
    assert isinstance(pattern, Intersection)
    return first.within(second)


def _same_batch(each: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors (batch or 1, ...), expanded to one batch size."""
    batch = max(len(x) for x in each)
    return [x.expand(batch, -1, -1) for x in each]


def _has_tables(pattern: Pattern) -> bool:
    return isinstance(pattern, BigBird) or any(map(_has_tables, inner_patterns(pattern)))


def _pooled(pattern: BigBird, queries: Range, keys: Range, heads: int, device: torch.device, size: int) -> Marks:
    """The visible blocks of BigBird, by the blocks of its table that overlap them."""
    table = block_table(pattern, max(queries.stop, keys.stop), heads, device)
    table = (table if table.dim() == 4 else table[None]).to(torch.float32)
    rows, columns = (_overlaps(p, pattern.block, table.shape[-1], size, device) for p in (queries, keys))
    return Marks(rows @ table @ columns.mT > 0, rows @ (1.0 - table) @ columns.mT == 0)


def _overlaps(positions: Range, block: int, blocks: int, size: int, device: torch.device) -> Tensor:
    """Which blocks of a table (blocks) overlap the blocks of `size` positions, (blocks of positions, blocks) float32, 1 or 0."""
    first = torch.arange(positions.start, positions.stop, size, device=device)[:, None]
    start = torch.arange(blocks, device=device) * block
    return ((start < first + size) & (start + block > first)).to(torch.float32)


@cached(64)
def _scanned(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device, size: int) -> Marks:
    return _scan(pattern, queries, keys, heads, device, size)


def _scan(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device, size: int) -> Marks:
    """The visible blocks, by evaluating every pair, one row of blocks at a time."""
    some, every = [], []
    with torch.inference_mode(False):
        there = keys.tensor(device)
        for start in range(queries.start, queries.stop, size):
            here = Range(start, size).tensor(device)
            seen = allowed_pairs(pattern, here, there, heads).expand(-1, size, keys.length)
            seen = seen.reshape(len(seen), size, -1, size)
            some.append(seen.any(dim=3).any(dim=1))
            every.append(seen.all(dim=3).all(dim=1))
        return Marks(torch.stack(some, dim=1)[None], torch.stack(every, dim=1)[None])


_PATTERNS: HandleTable[Pattern] = HandleTable()


@torch._dynamo.assume_constant_result  # type: ignore[misc]  # torch does not annotate it
def _handle(pattern: Pattern) -> int:
    return _PATTERNS.number(pattern)


# An operator of its own, because a compiled graph would otherwise evaluate every pair in every pass; it returns cached tensors.
@torch.library.custom_op("formers::flex_marks", mutates_args=())
def _operation(
    handle: int, first_query: int, queries: int, first_key: int, keys: int, heads: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    found = _scanned(_PATTERNS[handle], Range(first_query, queries), Range(first_key, keys), heads, device, size)
    return found.some.clone(), found.every.clone()  # an operator must not return the same tensor twice


@_operation.register_fake
def _shapes(
    handle: int, first_query: int, queries: int, first_key: int, keys: int, heads: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    shape = (1, heads if _PATTERNS[handle].by_head else 1, queries // size, keys // size)
    return torch.empty(shape, dtype=torch.bool, device=device), torch.empty(shape, dtype=torch.bool, device=device)
