"""FlexAttention as its documents define it, over the full matrix of scores: the kernel of tests on the CPU and on the test device.

Unlike torch's own uncompiled version it follows the lists of blocks as a GPU kernel does: key blocks that are not listed are never seen,
and in wholly visible ones the mask function is not called. Indices are int32, as in the compiled kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from formers.attention.executors.flex_kernel import ScoreMod


def equation(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
    """softmax over the visible keys of score_mod(scale q k^T), times v; and the log-sums. Rows without keys give 0 and minus infinity."""
    indices = _indices(q, k)
    seen = visible(block_mask, q, k)
    dtype = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(dtype) @ k.to(dtype).mT) * scale
    if score_mod is not None:
        scores = score_mod(scores, *indices)
    scores = scores.masked_fill(~seen, float("-inf"))
    some = (scores > float("-inf")).any(dim=-1, keepdim=True)
    safe = torch.where(some, scores, 0.0)
    lse = torch.where(some[..., 0], safe.logsumexp(dim=-1), float("-inf"))
    weights = torch.where(some, safe.softmax(dim=-1), 0.0)
    return (weights @ v.to(dtype)).to(q.dtype), lse


def visible(block_mask: Any, q: Tensor, k: Tensor) -> Tensor:
    """The pairs (batch, heads, queries, keys) that a kernel computes for a block mask, by its lists of blocks and its mask function."""
    n, m = q.shape[2], k.shape[2]
    assert tuple(block_mask.seq_lengths) == (n, m), f"the block mask is for {block_mask.seq_lengths}, not for {(n, m)}"
    part = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.BLOCK_SIZE, n, m)
    seen = part & block_mask.mask_mod(*_indices(q, k))
    if block_mask.full_kv_num_blocks is not None:
        seen = seen | _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, block_mask.BLOCK_SIZE, n, m)
    return seen.expand(q.shape[0], q.shape[1], n, m)


def _indices(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch, head, query and key, int32, broadcasting to all pairs."""
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    shapes = ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,))
    batch, head, query, key = (torch.arange(n, dtype=torch.int32, device=q.device).view(s) for n, s in zip(sizes, shapes, strict=True))
    return batch, head, query, key


def _listed(counts: Tensor, which: Tensor, size: tuple[int, int], n: int, m: int) -> Tensor:
    """The pairs (batch or 1, heads or 1, queries, keys) of the listed blocks."""
    marked = torch.zeros((*which.shape[:3], -(-m // size[1])), dtype=torch.int32, device=which.device)
    there = torch.arange(which.shape[3], device=which.device) < counts[..., None]
    marked = marked.scatter_add(3, which.long(), there.to(torch.int32))
    rows, columns = (torch.arange(length, device=which.device) // each for length, each in ((n, size[0]), (m, size[1])))
    return marked.index_select(2, rows).index_select(3, columns) > 0
