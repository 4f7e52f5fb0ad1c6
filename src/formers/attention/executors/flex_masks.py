"""Mask functions for FlexAttention: a pattern as a function of (batch, head, query, key), with tensors captured instead of integers.

All that changes between batches (offsets, lengths, padding, tables) is a captured tensor: a function with other tensors of the same ranks
needs no new kernel. The integers of a pattern are constants of its kernel. All arithmetic fits into int32, the type of a kernel's indices.
BigBird, whose sets take long arithmetic in int64, is a table of blocks, computed outside the kernel, so that all layers share one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.flex_kernel import MaskMod, dynamic
from formers.attention.request import Request, allowed_pairs
from formers.core import Range
from formers.core.tables import cached
from formers.patterns import Alternate, BigBird, Intersection, OrderedGrid, Pattern, PerHead, Union
from formers.patterns.ordered import pixel_order
from formers.patterns.structure import inner_patterns

SAMPLES = 64
"""The number of pairs on which a predicate is tested."""
FURTHEST = 4096
"""The largest position on which a predicate is tested."""

PositionMask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, i, j) -> whether the query at position i sees the key at position j."""


def request_mask(request: Request, mask: PositionMask, queries: Range, keys: Range, ends: Tensor | None, device: torch.device) -> MaskMod:
    """The mask of a request by indices; `mask` is that of its pattern, `queries` and `keys` are the request's, padded.

    ends (batch,): where rows end, if the pattern depends on it. Terms by distance and dropout add masks of their own.
    """
    first_query, first_key = first_positions(queries, keys, device)
    seen = placed(mask, first_query, first_key)
    if request.valid is None:
        seen = before(seen, number("keys", request.keys.length, device))
    else:
        seen = real(seen, dynamic(F.pad(request.valid, (0, keys.length - request.keys.length)), 0, 1))
        if ends is not None:  # positions after the end of the row are not part of it
            seen = ended(seen, dynamic(ends.to(torch.int32), 0), first_query)
    if request.first is not None:
        first = F.pad(request.first.to(torch.int32), (0, queries.length - request.queries.length))
        seen = in_episode(seen, dynamic(first, 0, 1), first_key)
    return seen


def position_mask(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> PositionMask:
    """The pattern as a function of positions, combined from the functions of its parts."""
    if isinstance(pattern, Alternate):
        pattern = pattern.at(0)
    if isinstance(pattern, Union):
        return either(*(position_mask(each, queries, keys, heads, device) for each in (pattern.first, pattern.second)))
    if isinstance(pattern, Intersection):
        return both(*(position_mask(each, queries, keys, heads, device) for each in (pattern.first, pattern.second)))
    if isinstance(pattern, PerHead):
        groups = heads_by_pattern(pattern)
        return by_head(tuple((own, position_mask(each, queries, keys, heads, device)) for each, own in groups))
    if isinstance(pattern, BigBird):
        table = block_table(pattern, max(queries.stop, keys.stop), heads, device)
        return in_row_tables(table, pattern.block) if table.dim() == 4 else in_table(table, pattern.block)
    if isinstance(pattern, OrderedGrid):
        return in_order(pattern, pixel_order(pattern.grid, pattern.channels, device))
    if _is_traced(pattern, heads):
        return predicate(pattern)
    return looked_up(_pairs(pattern, queries, keys, heads, device), *first_positions(queries, keys, device))


def heads_by_pattern(pattern: PerHead) -> tuple[tuple[Pattern, tuple[int, ...]], ...]:
    """The different patterns of a PerHead, each with its heads."""
    if torch.compiler.is_compiling() or has_tensors(pattern):  # patterns cannot be compared
        return tuple((each, (head,)) for head, each in enumerate(pattern.patterns))
    groups: dict[Pattern, tuple[int, ...]] = {}
    for head, each in enumerate(pattern.patterns):
        groups[each] = (*groups.get(each, ()), head)
    return tuple(groups.items())


def has_tensors(pattern: Pattern) -> bool:
    """Whether a pattern is bound to rows of different lengths: it is no key of a cache."""
    return isinstance(getattr(pattern, "row_blocks", None), Tensor) or any(map(has_tensors, inner_patterns(pattern)))


def either(first: PositionMask, second: PositionMask) -> PositionMask:
    """The union of two sets."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return first(batch, head, i, j) | second(batch, head, i, j)

    return seen


def both(first: PositionMask, second: PositionMask) -> PositionMask:
    """The intersection of two sets."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return first(batch, head, i, j) & second(batch, head, i, j)

    return seen


def by_head(groups: Sequence[tuple[tuple[int, ...], PositionMask]]) -> PositionMask:
    """Sets that differ between heads, chosen without a branch."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = head < 0  # all False
        for own, mask in groups:
            chosen = head == own[0]
            for other in own[1:]:
                chosen = chosen | (head == other)
            allowed = allowed | (chosen & mask(batch, head, i, j))
        return allowed

    return seen


def predicate(pattern: Pattern) -> PositionMask:
    """The pattern's own predicate."""
    differs = pattern.by_head

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.as_tensor(pattern.allows(i, j, head if differs else 0))

    return seen


def in_table(table: Tensor, block: int) -> PositionMask:
    """Sets of blocks, from a table (heads, blocks, blocks)."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[head, i // block, j // block]

    return seen


def in_row_tables(table: Tensor, block: int) -> PositionMask:
    """Sets of blocks that differ between rows, from a table (batch, heads, blocks, blocks)."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[batch, head, i // block, j // block]

    return seen


def in_order(pattern: OrderedGrid, order: Tensor) -> PositionMask:
    """The sets of an image in generation order, whose pixels are looked up in a table (cells,)."""
    grid, last = pattern.grid, pattern.max_length - 1

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (j >= 0) & (j <= i) & (i <= last)
        return inside & torch.as_tensor(grid.allows(order[i.clamp(0, last)], order[j.clamp(0, last)], 0))

    return seen


def looked_up(table: Tensor, first_query: Tensor, first_key: Tensor) -> PositionMask:
    """Sets from a table (heads, queries, keys) of all pairs."""

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[head, i - first_query, j - first_key]

    return seen


def placed(mask: PositionMask, first_query: Tensor, first_key: Tensor) -> MaskMod:
    """A mask of positions, as a mask of indices."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query + first_query, key + first_key)

    return seen


def before(mask: MaskMod, limit: Tensor) -> MaskMod:
    """A mask without keys that pad rows to a whole number of blocks."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query, key) & (key < limit)

    return seen


def real(mask: MaskMod, valid: Tensor) -> MaskMod:
    """A mask with the keys that are marked in valid (batch, keys)."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query, key) & valid[batch, key]

    return seen


def ended(mask: MaskMod, ends: Tensor, first_query: Tensor) -> MaskMod:
    """A mask with the queries before the ends (batch,) of their rows."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query, key) & (query + first_query < ends[batch])

    return seen


def in_episode(mask: MaskMod, first: Tensor, first_key: Tensor) -> MaskMod:
    """A mask with the keys at or after the first position (batch, queries) of each query's episode."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query, key) & (key + first_key >= first[batch, query])

    return seen


def first_positions(queries: Range, keys: Range, device: torch.device) -> tuple[Tensor, Tensor]:
    """The positions of the first query and of the first key."""
    return number("first query", queries.start, device), number("first key", keys.start, device)


def number(name: str, value: int, device: torch.device) -> Tensor:
    """An integer as a tensor () int32, which a mask function captures instead of a constant.

    Numbers of different names are different tensors, also if they are equal: torch compiles another kernel if tensors that were different
    become one.
    """
    return _full(value, device) if torch.compiler.is_compiling() else _number(name, value, device)


def _full(value: int, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=torch.int32, device=device)


@cached(1024)
def _number(name: str, value: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a tensor first made in evaluation is also used in training
        return _full(value, device)


def block_table(pattern: BigBird, stop: int, heads: int, device: torch.device) -> Tensor:
    """Which blocks of the positions 0 ... stop-1 see which: (heads, blocks, blocks) bool, with the batch before it if rows differ."""
    if torch.compiler.is_compiling() or isinstance(pattern.row_blocks, Tensor):
        return _block_table(pattern, stop, heads, device)
    return _cached_block_table(pattern, stop, heads, device)


def _block_table(pattern: BigBird, stop: int, heads: int, device: torch.device) -> Tensor:
    blocks = Range(0, -(-stop // pattern.block)).tensor(device) * pattern.block
    table = allowed_pairs(pattern, blocks, blocks, heads)
    table = table.expand(*table.shape[:-3], heads, len(blocks), len(blocks)).contiguous()
    return dynamic(table, 1, 2) if table.dim() == 3 else dynamic(table, 0, 2, 3)


@cached(256)  # small, and one per layer
def _cached_block_table(pattern: BigBird, stop: int, heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _block_table(pattern, stop, heads, device)


@cached(4)
def _pairs(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Tensor:
    """The pattern as (heads, queries, keys) bool: as large as the matrix that the kernel avoids, so only a fallback."""
    with torch.inference_mode(False):
        seen = allowed_pairs(pattern, queries.tensor(device), keys.tensor(device), heads)
        return dynamic(seen.expand(heads, queries.length, keys.length).contiguous(), 1, 2)


def _is_traced(pattern: Pattern, heads: int) -> bool:
    """Whether torch traces the predicate, with the same results in int32 as with integers; tests show it for those of the library."""
    known = type(pattern).__module__.startswith("formers.patterns.")
    return known or torch.compiler.is_compiling() or followed(pattern, heads)


@lru_cache(maxsize=64)
def followed(pattern: Pattern, heads: int) -> bool:
    """Whether torch traces the predicate over int32 scalars into one graph, with the same results as over integers."""
    mask = predicate(pattern)
    numbers = torch.Generator().manual_seed(0)
    stop = FURTHEST if pattern.max_length is None else pattern.max_length
    with torch.inference_mode(False), torch.no_grad(), torch._dynamo.config.patch(recompile_limit=SAMPLES):
        i, j = torch.randint(stop, (2, SAMPLES), generator=numbers, dtype=torch.int32)
        j[::2] = (i[::2] - torch.arange(len(i[::2])) // heads).clamp(min=0)  # most patterns change at short distances
        head = torch.arange(SAMPLES, dtype=torch.int32) % heads
        try:
            found = torch.compile(torch.vmap(mask), fullgraph=True, backend="eager", dynamic=False)(head * 0, head, i, j)
        except Exception:  # anything that torch cannot trace
            return False
        wanted = [bool(pattern.allows(*pair)) for pair in zip(i.tolist(), j.tolist(), head.tolist(), strict=True)]
    return found.tolist() == wanted
