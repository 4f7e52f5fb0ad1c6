"""Attention by FlexAttention: torch compiles a kernel for the pattern's predicate, over the blocks with an allowed pair.

The blocks are found by evaluating the predicate, one row of blocks at a time, and cached by value; in partly masked blocks the kernel
evaluates it again for each pair. It is for GPUs, in both passes. On a CPU torch has only the forward pass, and it runs only if
requested by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.sdpa import is_plainly_causal
from formers.attention.request import Request, allowed_pairs
from formers.core import Range
from formers.core.compiler import compiler
from formers.core.tables import cached
from formers.patterns import Pattern

BLOCK = 128
"""Queries and keys per block."""
SHORTEST = 512
"""Below this length the fused kernel with a mask is as fast."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNELS = 64
"""The largest number of kernels, one per pattern and length, that torch may compile."""
SAMPLES = 64
"""The number of pairs on which a predicate is tested."""

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) -> whether the query may see the key, each a scalar."""


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why FlexAttention cannot compute this; None if it can."""
    device = q.device.type
    if device not in ("cpu", "cuda"):
        return f"FlexAttention is not used on {device}"
    if request.first is not None:
        return "rows contain several episodes"
    if request.bias is not None:
        return "a term is added to the scores"
    if request.dropout:
        return "FlexAttention does not support dropout"
    if not isinstance(request.queries, Range) or not isinstance(request.keys, Range):
        return "the positions are not contiguous"
    if request.uneven:
        return "rows have different lengths, and the pattern depends on the length"
    if not (request.keys.length and request.queries.length and len(q)):
        return "there are no keys at all, or no queries"
    if q.dtype not in DTYPES:
        return f"FlexAttention has no kernel for {str(q.dtype).removeprefix('torch.')}"
    if torch.compiler.is_compiling():
        return "under torch.compile its blocks would be recomputed at every call"
    return _unsupported_on_cpu(q, k, v) if device == "cpu" else None


def _unsupported_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "FlexAttention has no backward on a CPU"
    if q.dtype != torch.float32:
        return "FlexAttention on a CPU is used in float32 only, because its half-precision kernels crash on some processors"
    return None if compiler() is not None else "there is no C++ compiler, which torch needs for its CPU kernel"


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why FlexAttention is not worthwhile; None if it is."""
    if q.device.type == "cpu":
        return "FlexAttention is for GPUs: on a CPU it is slower than blocked, and runs only if requested by name"
    if max(request.queries.length, request.keys.length) < SHORTEST or request.queries.length < BLOCK:
        return f"below {SHORTEST} tokens, or for fewer than {BLOCK} queries, all pairs are computed as fast"
    return "the pattern is full or causal: the fused kernel needs no mask" if _plain(request) else None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by the kernel that torch compiles for the pattern."""
    mask = block_mask(request, q.device)
    with _writing():
        out: Tensor = _compiled()(q, k, v, block_mask=mask, scale=request.scale)
    return out


@contextmanager
def _writing() -> Iterator[None]:
    """A context in which torch may compile as many kernels as needed, without its warnings."""
    with torch._dynamo.config.patch(recompile_limit=KERNELS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _plain(request: Request) -> bool:
    """Whether the fused kernel needs no mask."""
    return request.open or is_plainly_causal(request)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """The compiled FlexAttention: without compilation it would compute the full matrix of scores."""
    from torch.nn.attention.flex_attention import flex_attention

    # With dynamic shapes torch would reason about remainders of symbols for minutes, and the C++ code for a CPU would not compile:
    # so a kernel is for one pattern and one length.
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class FlexBlocks(NamedTuple):
    """For every block of queries: the number and the indices of key blocks that are partly visible, and of those wholly visible."""

    part: Tensor
    """(1, heads or 1, blocks of queries)."""
    which_part: Tensor
    """(1, heads or 1, blocks of queries, blocks of keys): the first `part` of them are valid."""
    whole: Tensor
    which_whole: Tensor


def block_mask(request: Request, device: torch.device) -> Any:
    """The request's mask for FlexAttention: blocks, and the predicate for partly visible ones."""
    assert isinstance(request.queries, Range)
    assert isinstance(request.keys, Range)
    asked = request.pattern.of(request.keys.stop), request.queries, request.keys, request.heads, device
    if request.valid is None:
        return _cached_mask(*asked)
    seen, valid = predicate(*asked), request.valid

    def real(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return seen(batch, head, query, key) & valid[batch, key]

    return _mask(_blocks(*asked, True), real, request.queries, request.keys)


@cached(16)
def _cached_mask(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Any:
    asked = pattern, queries, keys, heads, device
    with torch.inference_mode(False):  # tables first computed in evaluation are also used in training
        return _mask(_blocks(*asked, False), predicate(*asked), queries, keys)


def _mask(blocks: FlexBlocks, seen: Predicate, queries: Range, keys: Range) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(queries.length, keys.length))


@cached(16)
def _blocks(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device, padded: bool) -> FlexBlocks:
    """The blocks with an allowed pair; if keys are padded, no block counts as wholly visible."""
    some, every = [], []
    more = -keys.length % BLOCK
    with torch.inference_mode(False):
        there = keys.tensor(device)
        for start in range(0, queries.length, BLOCK):
            here = queries.tensor(device)[start : start + BLOCK]
            seen = allowed_pairs(pattern, here, there, heads).expand(-1, len(here), len(there))
            # Padding after the last key and query is masked, so that blocks at the edges are partly visible.
            seen = F.pad(seen, (0, more, 0, BLOCK - len(here)))
            seen = seen.view(seen.shape[0], BLOCK, -1, BLOCK)
            some.append(seen.any(dim=3).any(dim=1))
            every.append(seen.all(dim=3).all(dim=1))
        whole = torch.stack(every, dim=1)[None] & (not padded)
        return FlexBlocks(*_listed(torch.stack(some, dim=1)[None] & ~whole), *_listed(whole))


def _listed(marked: Tensor) -> tuple[Tensor, Tensor]:
    """The number of marked elements of each row, and all indices, those of marked elements first."""
    order = torch.argsort(marked.to(torch.uint8), dim=-1, descending=True, stable=True)
    return marked.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


def predicate(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Predicate:
    """Whether a query sees a key, by their indices: the pattern's predicate if torch can trace it, else a table of all pairs."""
    first_query, first_key, by_head = queries.start, keys.start, pattern.by_head

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.as_tensor(pattern.allows(query + first_query, key + first_key, head if by_head else 0))

    if _followed(pattern, max(queries.stop, keys.stop), heads):
        return seen
    table = _table(pattern, queries, keys, heads, device)

    def looked_up(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return table[head if by_head else head * 0, query, key]

    return looked_up


@cached(4)
def _table(pattern: Pattern, queries: Range, keys: Range, heads: int, device: torch.device) -> Tensor:
    """The pattern as (heads or 1, queries, keys) bool: as large as the matrix that the kernel avoids, so only a fallback."""
    with torch.inference_mode(False):
        seen = allowed_pairs(pattern, queries.tensor(device), keys.tensor(device), heads)
        return seen.expand(-1, queries.length, keys.length).contiguous()


@lru_cache(maxsize=64)
def _followed(pattern: Pattern, stop: int, heads: int) -> bool:
    """Whether torch traces the predicate over scalars into one graph, with the same results as over tensors."""

    def seen(query: Tensor, key: Tensor, head: Tensor) -> Tensor:
        return torch.as_tensor(pattern.allows(query, key, head if pattern.by_head else 0))

    numbers = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.no_grad(), _writing():
        i, j = torch.randint(stop, (2, SAMPLES), generator=numbers)
        j[::2] = (i[::2] - torch.arange(len(i[::2])) // heads).clamp(min=0)  # most patterns change at short distances
        head = torch.arange(SAMPLES) % heads
        try:
            found = torch.compile(torch.vmap(seen), fullgraph=True, backend="eager", dynamic=False)(i, j, head)
        except Exception:  # anything that torch cannot trace
            return False
        wanted = [bool(pattern.allows(*pair)) for pair in zip(i.tolist(), j.tolist(), head.tolist(), strict=True)]
    return found.tolist() == wanted
