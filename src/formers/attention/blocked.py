"""Attention by pieces: a pattern's plan, run as batched dense attentions and merged; no n x n tensor in either direction.

o = sum_p exp(l_p - l) o_p        l = log sum_p exp(l_p)        over the pieces p that hold a query's keys       E23

Torch's fused CPU kernel gives o_p and l_p. Its backward is exact for a piece when it is handed the merged o and l: a weight of the
piece is exp(score - l), whoever else is in the sum. Where the kernel cannot be used (other devices, dropout, values of another width)
the pieces are computed by plain matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Pattern
from formers.patterns.plan import Chosen, Grid, Piece, Plan, Round, Where

forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
SHORTEST = 512
"""Below this length the fused kernel over all pairs is as fast."""


def refuses(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be cut into pieces here, or None where it can."""
    if not (request.square and isinstance(request.queries, Range) and request.queries.start == 0):
        return "queries and keys are not the same tokens from the first on"
    if request.bias is not None:
        return "a term is added to the scores"
    if torch.compiler.is_compiling():
        return "torch.compile sees whole tensors better than pieces"
    return None


def idles(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why pieces would not pay, or None where they do."""
    n = request.queries.length
    if n < SHORTEST:
        return f"below {SHORTEST} tokens all pairs are computed as fast"
    heads, pattern = request.heads if request.pattern.by_head else 1, request.pattern.of(n)
    share = sum(piece.pairs for head in range(heads) for pieces in pattern.pieces(n, head) for piece in pieces) / (n * n * heads)
    if share > (0.2 if request.pattern.is_causal else 0.4):
        return f"the pattern's pieces hold {share:.0%} of all pairs"
    return None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by pieces; heads of one plan together."""
    if request.uneven:
        return _rows(q, k, v, request)
    pattern = request.pattern.of(q.shape[2])
    if not pattern.by_head:
        return _run(q, k, v, pattern.pieces(q.shape[2]), request)
    alike: list[tuple[Plan, list[int]]] = []
    for head in range(q.shape[1]):
        plan = pattern.pieces(q.shape[2], head)
        same = next((heads for known, heads in alike if known is plan), None)
        if same is None:
            alike.append((plan, [head]))
        else:
            same.append(head)
    order = [head for _, heads in alike for head in heads]
    parts = [_run(q[:, heads], k[:, heads], v[:, heads], plan, request) for plan, heads in alike]
    return torch.cat(parts, dim=1)[:, [order.index(head) for head in range(q.shape[1])]]


def _rows(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention of padded rows whose pattern depends on where they end: rows of one pattern together, cut off behind the longest."""
    assert request.valid is not None
    # What is read from the device here chooses a plan, not an executor: plans are made of numbers.
    ends, counts = (number.tolist() for number in (request.ends(), request.valid.sum(dim=1)))
    alike: dict[Pattern, list[int]] = {}
    for row, end in enumerate(ends):
        if end:
            alike.setdefault(request.pattern.of(end), []).append(row)
    out = torch.zeros_like(v) + v[:, :, :0].sum()  # a sum of nothing: a batch of padding has a gradient, too
    for pattern, rows in alike.items():
        n = max(ends[row] for row in rows)
        valid = None if all(counts[row] == n for row in rows) else request.valid[rows, :n]
        here = request._replace(pattern=pattern, queries=Range(0, n), keys=Range(0, n), valid=valid)
        out[rows, :, :n] = run(q[rows, :, :n], k[rows, :, :n], v[rows, :, :n], here)
    behind = torch.arange(q.shape[2], device=q.device) >= request.ends()[:, None]
    return out.masked_fill(behind[:, None, :, None], 0.0)


def _run(q: Tensor, k: Tensor, v: Tensor, plan: Plan, request: Request) -> Tensor:
    """Attention of q, k, v (batch, heads, n, width) over a plan."""
    batch, heads, n, _ = q.shape
    if n == 0 or batch == 0:
        return torch.zeros_like(v)
    unit = math.lcm(*(w.unit for pieces in plan for p in pieces for w in (p.queries, p.keys) if isinstance(w, Chosen)))
    more = -n % unit
    qs, ks, vs = ((F.pad(x, (0, 0, 0, more)) if more else x).reshape(batch * heads, n + more, x.shape[3]) for x in (q, k, v))
    valid = None if request.valid is None else F.pad(request.valid, (0, more)).repeat_interleave(heads, dim=0)
    fused = q.device.type == "cpu" and not request.dropout and q.shape[3] == v.shape[3]
    attention = Fused.apply if fused else unfused
    out: Tensor = attention(qs, ks, vs, valid, plan, request.scale, request.dropout)
    return out[:, :n].view(batch, heads, n, v.shape[3])


def take(x: Tensor, where: Where) -> Tensor:
    """The tokens of x (rows, n, ...) at some positions, (groups, rows, size, ...): of a grid as a view, else copied."""
    if isinstance(where, Chosen):
        blocks = _in_blocks(x, where.unit).index_select(1, _numbers(where, x.device))
        return blocks.view(x.shape[0], where.groups, where.size, *x.shape[2:]).transpose(0, 1)
    strides = (x.stride(1) * where.step, x.stride(0), x.stride(1) * where.stride, *x.stride()[2:])
    return x.as_strided((where.groups, x.shape[0], where.size, *x.shape[2:]), strides, x.storage_offset() + where.start * x.stride(1))


def add(x: Tensor, where: Where, y: Tensor) -> None:
    """Adds y (groups, rows, size, ...) to the tokens of x (rows, n, ...) at some positions, to each as often as it is named."""
    if isinstance(where, Chosen):
        blocks = y.transpose(0, 1).reshape(x.shape[0], -1, where.unit, *x.shape[2:])
        _in_blocks(x, where.unit).index_add_(1, _numbers(where, x.device), blocks)
        return
    # Parts of groups that are no longer than the step from one group to the next do not overlap.
    part = where.step // where.stride if where.overlap else where.size
    for start in range(0, where.size, part):
        size = min(part, where.size - start)
        there = take(x, Grid(where.start + start * where.stride, where.groups, size, where.step, where.stride))
        there.add_(y[:, :, start : start + size])


def _numbers(where: Chosen, device: torch.device) -> Tensor:
    return torch.as_tensor(where.blocks, device=device).flatten()


def _in_blocks(x: Tensor, unit: int) -> Tensor:
    """x (rows, n, ...) as (rows, blocks, unit, ...)."""
    return x.view(x.shape[0], -1, unit, *x.shape[2:])


def put(x: Tensor, where: Where, y: Tensor) -> None:
    """Writes y (groups, rows, size, ...) to the tokens of x (rows, n, ...) at positions that are named once."""
    if isinstance(where, Chosen):
        blocks = y.transpose(0, 1).reshape(x.shape[0], -1, where.unit, *x.shape[2:])
        _in_blocks(x, where.unit).index_copy_(1, _numbers(where, x.device), blocks)
    else:
        take(x, where).copy_(y)


def allowed(piece: Piece, valid: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys the queries of a piece may see, (queries, keys) or (groups, rows or 1, queries, keys); None for all, or if causal.

    valid (rows, n) marks the real keys of each row.
    """
    mask = None if piece.mask is None else torch.as_tensor(piece.mask, device=device)
    if piece.causal and valid is not None:
        mask = torch.ones(piece.queries.size, piece.keys.size, dtype=torch.bool, device=device).tril()
    if mask is not None and mask.dim() == 3:
        mask = mask[:, None]
    if valid is None:
        return mask
    real = take(valid, piece.keys)[:, :, None]
    return real.expand(-1, -1, piece.queries.size, -1) if mask is None else real & mask


def as_term(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A boolean mask as what is added to scores."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, float("-inf"))


def merge(first: Tensor, l1: Tensor, second: Tensor, l2: Tensor) -> tuple[Tensor, Tensor]:
    """Two partial attentions (rows, n, width), with the logarithms of their sums (rows, n), as one."""
    # A query without keys has -inf on both sides: its weights are 0, and so are their gradients.
    top = torch.maximum(l1, l2).detach()
    top = top.masked_fill(top == float("-inf"), 0.0)
    one, two = (l1 - top).exp(), (l2 - top).exp()
    total = (one + two).clamp(min=torch.finfo(top.dtype).tiny)
    both = (top + total.log()).masked_fill((l1 == float("-inf")) & (l2 == float("-inf")), float("-inf"))
    one, two = ((part / total)[..., None].to(first.dtype) for part in (one, two))
    return first * one + second * two, both  # E23


class Fused(torch.autograd.Function):
    """Attention of q, k, v (rows, n, width) over a plan, by the fused kernel in both directions."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, plan: Plan, scale: float, dropout: float) -> Tensor:
        out, lse = _blank(plan[0], v, _wide(q.dtype))
        for number, pieces in enumerate(plan):
            o, sums = (out, lse) if number == 0 else _blank(pieces, v, lse.dtype)
            for piece in _portions(pieces, q.shape[1]):
                mask = allowed(piece, valid, q.device)
                y, s = forward_kernel(
                    take(q, piece.queries), take(k, piece.keys), take(v, piece.keys), 0.0, piece.causal and mask is None,
                    attn_mask=as_term(mask, q), scale=scale,
                )  # fmt: skip
                if mask is not None:  # for a query without keys the kernel gives a sum of 1
                    none = ~mask.any(dim=-1)
                    y, s = y.masked_fill(none[..., None], 0.0), s.masked_fill(none, float("-inf"))
                put(o, piece.queries, y)
                put(sums, piece.queries, s)
            if number:
                out, lse = merge(out, lse, o, sums)
        # In the backward pass the weights of a query without keys are exp(score - inf) = 0.
        ctx.save_for_backward(q, k, v, out, lse.masked_fill(lse == float("-inf"), float("inf")))
        ctx.valid, ctx.plan, ctx.scale = valid, plan, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        g = grads[0].contiguous()
        whole = _covers(ctx.plan[0], q.shape[1])
        dq, dk, dv = torch.empty_like(q) if whole else torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, pieces in enumerate(ctx.plan):
            for piece in _portions(pieces, q.shape[1]):
                a, b, mask = piece.queries, piece.keys, allowed(piece, ctx.valid, q.device)
                gq, gk, gv = backward_kernel(
                    take(g, a), take(q, a), take(k, b), take(v, b), take(out, a), take(lse, a), 0.0, piece.causal and mask is None,
                    attn_mask=as_term(mask, q), scale=ctx.scale,
                )  # fmt: skip
                (put if whole and number == 0 else add)(dq, a, gq)
                add(dk, b, gk)
                add(dv, b, gv)
        return dq, dk, dv, None, None, None, None


def _covers(pieces: Round, n: int) -> bool:
    """Whether a round names all of n queries; it names none twice."""
    return sum(piece.queries.groups * piece.queries.size for piece in pieces) == n


def _blank(pieces: Round, v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Where a round's outputs and sums go: what no piece will write is 0 and minus infinity."""
    if _covers(pieces, v.shape[1]):
        return torch.empty_like(v), torch.empty(v.shape[:2], dtype=dtype, device=v.device)
    return torch.zeros_like(v), torch.full(v.shape[:2], float("-inf"), dtype=dtype, device=v.device)


def _portions(pieces: Round, n: int) -> Iterator[Piece]:
    """The pieces, those whose keys are copied a few groups at a time, so that the copies are about as large as what they are made of."""
    for piece in pieces:
        each = max(1, n // piece.keys.size) if isinstance(piece.keys, Chosen) else piece.queries.groups
        for first in range(0, piece.queries.groups, each):
            yield piece.portion(first, min(each, piece.queries.groups - first))


def unfused(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, plan: Plan, scale: float, dropout: float) -> Tensor:
    """Attention of q, k, v (rows, n, width) over a plan, by plain matrix products, which autograd goes back through."""
    out = torch.zeros_like(v) + v[:, :0].sum()  # a sum of nothing: a plan without pieces has a gradient, too
    lse = torch.full(q.shape[:2], float("-inf"), dtype=_wide(q.dtype), device=q.device)
    for pieces in plan:
        o, sums = torch.zeros_like(v), torch.full_like(lse, float("-inf"))
        for piece in pieces:
            a, s = _weights(take(q, piece.queries) * scale, take(k, piece.keys), piece, valid)
            a = torch.dropout(a, dropout, train=True) if dropout else a
            o, sums = _placed(o, piece.queries, a @ take(v, piece.keys)), _placed(sums, piece.queries, s)
        out, lse = merge(out, lse, o, sums)
    return out


def _weights(q: Tensor, k: Tensor, piece: Piece, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights of a piece (groups, rows, queries, keys), and the logarithms of the sums they were divided by."""
    scores, mask = q @ k.transpose(-1, -2), allowed(piece, valid, q.device)
    if piece.causal and mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is None:
        return scores.softmax(dim=-1), scores.to(_wide(q.dtype)).logsumexp(dim=-1)
    some = mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(~some, 0.0)
    sums = scores.to(_wide(q.dtype)).logsumexp(dim=-1).masked_fill(~some[..., 0], float("-inf"))
    return scores.softmax(dim=-1).masked_fill(~some, 0.0), sums


def _placed(x: Tensor, where: Where, y: Tensor) -> Tensor:
    """x with y at some positions, as autograd can follow it."""
    x = x.clone()
    put(x, where, y)
    return x


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
