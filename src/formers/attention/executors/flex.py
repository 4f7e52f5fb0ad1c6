"""Attention by FlexAttention: torch compiles a kernel for the pattern's predicate, over the blocks with an allowed pair.

Rows are padded to whole blocks, and the padding is masked, so that one kernel serves all lengths. Terms by distance are added, and dropout
is applied, inside the kernel. It is for accelerators, in both passes. On a CPU torch has only the forward pass, and it runs only if
requested by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors import flex_dropout, flex_terms
from formers.attention.executors.flex_kernel import (
    LISTS,
    NARROWEST,
    KernelRefused,
    MaskMod,
    RefusedKernels,
    dtype_unsupported,
    flex_attention,
    flex_output,
)
from formers.attention.executors.flex_lengths import by_row, known_by_length
from formers.attention.executors.flex_lists import Band, Lists, block_lists, listed
from formers.attention.executors.flex_masks import number, position_mask, request_mask
from formers.attention.executors.sdpa import is_plainly_causal
from formers.attention.request import Request
from formers.core import Range
from formers.core.compiler import compiler
from formers.core.devices import capabilities, on_host
from formers.patterns import BigBird, Pattern
from formers.patterns.structure import inner_patterns
from formers.score import ByDistance

BLOCK = 128
"""Queries and keys per block."""
SHORTEST = 512
"""Below this length the fused kernel with a mask is as fast."""
LARGEST_TABLE = 1 << 26
"""The largest table of blocks, in bytes."""

REFUSED = RefusedKernels()
"""The refused kernels, by `_kind`."""


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why FlexAttention cannot compute this; None if it can."""
    host = on_host(q)
    if q.device.type != "cpu" if host else not capabilities(q.device).flex:
        return f"FlexAttention is not used on {q.device.type}"
    if not isinstance(request.queries, Range) or not isinstance(request.keys, Range):
        return "the positions are not contiguous"
    if not (request.keys.length and request.queries.length and len(q)):
        return "there are no keys at all, or no queries"
    if isinstance(request.bias, Tensor) or (host and request.bias is not None):
        return "a term is added to the scores"
    if (why := dtype_unsupported(q)) is not None:
        return why
    if host:
        return _unsupported_on_cpu(request, q, k, v)
    if min(q.shape[3], v.shape[3]) < NARROWEST:
        return f"heads are narrower than {NARROWEST}, for which FlexAttention has no kernel"
    if request.uneven and not known_by_length(request.pattern):
        return "rows have different lengths, and the pattern depends on the length"
    if request.heads * _table_blocks(request.pattern, request.keys.stop) ** 2 * (len(q) if request.uneven else 1) > LARGEST_TABLE:
        return f"the pattern's table of blocks would be larger than {LARGEST_TABLE >> 20} MiB"
    return None if torch.compiler.is_compiling() else REFUSED.why(_kind(request, q, k, v))


def _unsupported_on_cpu(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    if request.first is not None:
        return "rows contain several episodes"
    if request.uneven:
        return "rows have different lengths, and the pattern depends on the length"
    if request.dropout:
        return "FlexAttention does not support dropout on a CPU"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "FlexAttention has no backward on a CPU"
    if torch.compiler.is_compiling():
        return "under torch.compile it is for accelerators"
    if q.dtype != torch.float32:
        return "FlexAttention on a CPU is used in float32 only, because its half-precision kernels crash on some processors"
    return None if compiler() is not None else "there is no C++ compiler, which torch needs for its CPU kernel"


def _table_blocks(pattern: Pattern, stop: int) -> int:
    """The number of rows of the largest table of blocks in a pattern, 0 if it has none."""
    own = -(-stop // pattern.block) if isinstance(pattern, BigBird) else 0
    return max(own, *(_table_blocks(inner, stop) for inner in inner_patterns(pattern)), 0)


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why FlexAttention is not worthwhile; None if it is."""
    if on_host(q):
        return "FlexAttention is for GPUs: on a CPU it is slower than blocked, and runs only if requested by name"
    if max(request.queries.length, request.keys.length) < SHORTEST or request.queries.length < BLOCK:
        return f"below {SHORTEST} tokens, or for fewer than {BLOCK} queries, all pairs are computed as fast"
    plain = request.bias is None and request.first is None and request.covered
    return "the pattern is full or causal: the fused kernel needs no mask of all pairs" if plain or is_plainly_causal(request) else None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by the kernel that torch compiles for the pattern."""
    n, queries, keys = q.shape[2], *_padded(request)
    if _maybe(queries.length > n):
        q = F.pad(q, (0, 0, 0, queries.length - n))
    if _maybe(keys.length > k.shape[2]):
        k, v = (F.pad(x, (0, 0, 0, keys.length - x.shape[2])) for x in (k, v))
    score = flex_terms.term_score(request.bias, request.offset, q.device) if isinstance(request.bias, ByDistance) else None
    mask = block_mask(request, q.device)
    try:
        if score is None and not request.dropout:
            out = flex_output(q, k, v, mask, request.scale)
        else:
            out, lse = flex_attention(q, k, v, mask, request.scale, score)
        if request.dropout:
            seeds = flex_dropout.draw_seeds(len(q), request.heads, queries.length, q.device)
            some, log_kept = flex_attention(q, k, v, kept_mask(mask, request, seeds), request.scale, score)
            out = flex_dropout.combined(some, log_kept, lse, request.dropout)
    except KernelRefused as refusal:
        REFUSED.add(_kind(request, q, k, v), refusal)
        raise
    return out[:, :, :n] if _maybe(queries.length > n) else out


def _maybe(true: bool) -> bool:
    """A condition on lengths; True under torch.compile, which would compile a graph for either value."""
    return torch.compiler.is_compiling() or true


def _padded(request: Request) -> tuple[Range, Range]:
    """The queries and keys of a request, and the positions after them that fill a block."""
    assert isinstance(request.queries, Range)
    assert isinstance(request.keys, Range)
    queries, keys = (Range(p.start, p.length + -p.length % BLOCK) for p in (request.queries, request.keys))
    return queries, keys


def block_mask(request: Request, device: torch.device) -> Any:
    """The request's mask for FlexAttention: blocks, and the mask function for partly visible ones."""
    queries, keys = _padded(request)
    band = flex_terms.band(request.bias) if isinstance(request.bias, ByDistance) else None
    ends = request.ends() if request.uneven else None
    if ends is not None:
        mask, found = by_row(request.pattern, ends, queries, keys, request.heads, device, BLOCK)
        lists = listed(found if band is None else found.within(band.marks(queries, keys, BLOCK, device)), False, True)
    else:
        mask = position_mask(request.pattern.of(request.keys.stop), queries, keys, request.heads, device)
        lists = _lists(request, band, request.valid is not None or request.first is not None, device)
    seen = request_mask(request, mask, queries, keys, ends, device)
    if isinstance(request.bias, ByDistance):
        seen = flex_terms.in_band(seen, request.bias, request.offset, device)
    return _block_mask(queries, keys, lists, seen)


def _lists(request: Request, band: Band | None, masked: bool, device: torch.device) -> Lists:
    queries, keys = _padded(request)
    ragged = _maybe(keys.length > request.keys.length)
    return block_lists(request.pattern.of(request.keys.stop), queries, keys, request.heads, device, BLOCK, band, ragged, masked)


def _block_mask(queries: Range, keys: Range, lists: Lists, seen: MaskMod) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    make: Any = BlockMask
    return make((queries.length, keys.length), *lists, (BLOCK, BLOCK), seen)


def kept_mask(mask: Any, request: Request, seeds: Tensor) -> Any:
    """The part of a request's mask that dropout keeps."""
    queries, keys = _padded(request)
    lists = tuple(getattr(mask, name) for name in LISTS)
    if mask.full_kv_indices is not None:  # dropout applies to every pair: no block is wholly visible
        band = flex_terms.band(request.bias) if isinstance(request.bias, ByDistance) else None
        lists = _lists(request, band, True, seeds.device)
    threshold = number("threshold", flex_dropout.threshold(request.dropout), seeds.device)
    return _block_mask(queries, keys, lists, flex_dropout.kept(mask.mask_mod, seeds, threshold))


def _kind(request: Request, q: Tensor, k: Tensor, v: Tensor) -> tuple[object, ...]:
    """All that a kernel depends on: not the batch, and not the lengths."""
    learning = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return (
        request.pattern, q.device, q.dtype, q.shape[1], q.shape[3], v.shape[3], request.valid is None, request.first is None,
        type(request.bias), request.dropout > 0, learning,
    )  # fmt: skip
