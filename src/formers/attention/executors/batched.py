"""Attention by pieces off the host: rows, heads and units are one batch dimension of a few matrix products (`batched_plan`).

o = sum_p exp(l_p - l) o_p        l = log sum_p exp(l_p)        over the rounds p, with the partial attentions o_p and log-sums l_p

Plain torch operations without a host read; their number depends on the plan, not on batch and heads. Products are in the dtype of the
inputs; scores, weights, log-sums and sums of gradients are in at least float32. The backward pass recomputes the weights of a piece as
exp(score - l) with the merged l; only q, k, v, the output, l and the dropout masks are saved. Key gradients are added by index, in an
order that torch does not fix on a GPU unless `torch.use_deterministic_algorithms` is on.

Shapes: tokens are (lead, rows, width). Without sets by head, lead = batch * heads and rows = n, else lead = batch and rows = heads * n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formers.attention.executors.batched_plan import BatchedPiece, BatchedPlan, batched_plan
from formers.attention.executors.tiles import EMPTY, SHUT, wide
from formers.attention.request import Request

LARGEST = 1 << 30
"""Bytes of the scores of a piece, or of its keys, over all rows and heads. Larger pieces are split."""


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention of q, k, v (batch, heads, n, width), v of any width, by batched pieces."""
    if q.numel() == 0:
        return torch.zeros_like(v)
    batch, heads, n, _ = q.shape
    pattern = request.pattern.of(n)
    lead = batch if pattern.by_head else batch * heads
    each = LARGEST // (lead * wide(q.dtype).itemsize)
    limit = 1 << (max(1, each).bit_length() - 1)  # a power of two: few different plans for different batches
    plan = batched_plan(pattern, n, heads if pattern.by_head else 1, max(q.shape[3], v.shape[3]), limit, q.device)
    out: Tensor = BatchedAttention.apply(q, k, v, request.valid, plan, request.scale, request.dropout)  # type: ignore[no-untyped-call]
    return out


class BatchedAttention(torch.autograd.Function):
    """Attention by a batched plan, with the backward pass that recomputes the weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, plan: BatchedPlan, scale: float, dropout: float) -> Tensor:
        """The output, in the dtype and shape of v."""
        with torch.autocast(q.device.type, enabled=False):
            rows = _tokens(q, k, v, valid, plan, scale)
            keeps = [keep_mask(rows, piece, dropout) for part in plan.rounds for piece in part] if dropout else []
            out, lse = _forward(rows, plan, keeps, dropout)
        out = out.reshape(v.shape)
        ctx.save_for_backward(q, k, v, valid, out, lse, *keeps)
        ctx.rest = plan, scale, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of q, k and v."""
        q, k, v, valid, out, lse, *keeps = ctx.saved_tensors
        plan, scale, dropout = ctx.rest
        with torch.autocast(q.device.type, enabled=False):
            rows = _tokens(q, k, v, valid, plan, scale)
            dq, dk, dv = _backward(rows, plan, g, out, lse, keeps, dropout)
            dq = dq.mul_(scale)
        return *(d.to(x.dtype).reshape(x.shape) for d, x in ((dq, q), (dk, k), (dv, v))), None, None, None, None


class _Tokens(NamedTuple):
    """The tokens of all rows and heads."""

    q: Tensor
    """(lead, rows, width), times the scale; with a row of zeros after the last, if units have padding in their queries."""
    k: Tensor
    v: Tensor
    shut: Tensor | None
    """(lead, rows), added to the scores of keys: SHUT at padding."""

    @property
    def wide(self) -> torch.dtype:
        """The dtype of scores and sums."""
        return wide(self.q.dtype)


def _tokens(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, plan: BatchedPlan, scale: float) -> _Tokens:
    batch, heads, n, _ = q.shape
    lead = batch * heads * n // plan.rows
    shut = None
    if valid is not None:
        shut = valid.to(wide(q.dtype)).sub_(1.0).mul_(-SHUT)[:, None].expand(batch, heads, n).reshape(lead, plan.rows)
    k, v = (x.reshape(lead, plan.rows, x.shape[3]) for x in (k, v))
    # Scaled before the product, which could otherwise overflow float16.
    return _Tokens(_padded((q * scale).reshape(lead, plan.rows, q.shape[3]), plan), k, v, shut)


def _padded(x: Tensor, plan: BatchedPlan) -> Tensor:
    """x (lead, rows, width) with a row of zeros after the last, if the plan indexes it."""
    return F.pad(x, (0, 0, 0, 1)) if plan.padded else x


def keep_mask(rows: _Tokens, piece: BatchedPiece, dropout: float) -> Tensor:
    """The weights of a piece that dropout keeps, (lead * units, size, keys) bool."""
    shape = (len(rows.q) * piece.units, piece.size, piece.keys_each)
    return torch.rand(shape, device=rows.q.device) >= dropout


def _take(x: Tensor, index: Tensor | None, units: int) -> Tensor:
    """The indexed rows of x (lead, rows, width) as (lead * units, rows per unit, width)."""
    return (x if index is None else x.index_select(1, index)).reshape(len(x) * units, -1, x.shape[2])


def _scores(rows: _Tokens, piece: BatchedPiece, q: Tensor, k: Tensor) -> Tensor:
    """The scores (lead * units, size, keys) of a piece, SHUT or less at hidden pairs."""
    s = torch.bmm(q, k.mT).to(rows.wide)
    by_unit = s.view(-1, piece.units, *s.shape[1:])
    if piece.hidden is not None:
        by_unit.masked_fill_(piece.hidden, SHUT)
    if rows.shut is not None:
        by_unit.add_(rows.shut.index_select(1, piece.keys).view(-1, piece.units, 1, piece.keys_each))
    return s


Partial = tuple[Tensor, Tensor]
"""An attention (lead, queries, value width) over some of the keys, and its log-sums (lead, queries, 1)."""


def _forward(rows: _Tokens, plan: BatchedPlan, keeps: list[Tensor], dropout: float) -> Partial:
    """The output (lead, rows, value width) in the dtype of v, and the log-sums (lead, rows, 1)."""
    left = iter(keeps)
    out, lse = None, None
    for part in plan.rounds:
        y, sums = _round(rows, plan, part, left)
        if out is None or lse is None:
            out, lse = y, sums
        else:
            merged = torch.logaddexp(lse, sums)
            out = (lse - merged).exp_().mul(out).addcmul_((sums - merged).exp_(), y.to(rows.wide))
            lse = merged
    if out is None or lse is None:  # a pattern without any pair
        return torch.zeros_like(rows.v), rows.v.new_zeros((len(rows.v), plan.rows, 1), dtype=rows.wide)
    # A query without keys has the log-sum of hidden scores here. With 0 instead, its weights are 0 in the backward pass.
    empty = lse < EMPTY
    out = out / (1.0 - dropout) if dropout else out
    return out.masked_fill(empty, 0.0).to(rows.v.dtype), lse.masked_fill(empty, 0.0)


def _round(rows: _Tokens, plan: BatchedPlan, part: tuple[BatchedPiece, ...], keeps: Iterator[Tensor]) -> Partial:
    """The partial attention of one round, and its log-sums; 0 and SHUT for queries that are not in it."""
    found = [_piece(rows, piece, next(keeps, None)) for piece in part]
    (out, lse), more = found[0], plan.rows + plan.padded
    if part[0].queries is not None:
        out, lse = out.new_zeros((len(out), more, out.shape[2])), lse.new_full((len(lse), more, 1), SHUT)
        for piece, (y, sums) in zip(part, found, strict=True):
            assert piece.queries is not None  # a piece with all queries is the only one of its round
            out.index_copy_(1, piece.queries, y)
            lse.index_copy_(1, piece.queries, sums)
    return out[:, : plan.rows], lse[:, : plan.rows]


def _piece(rows: _Tokens, piece: BatchedPiece, keep: Tensor | None) -> Partial:
    """The attention (lead, units * size, value width) of a piece over the kept keys, and its log-sums over all."""
    k, v = (_take(x, piece.keys, piece.units) for x in (rows.k, rows.v))
    s = _scores(rows, piece, _take(rows.q, piece.queries, piece.units), k)
    p = torch.softmax(s, dim=-1)
    lse = s.amax(dim=-1).sub_(p.amax(dim=-1).log_())  # the largest weight is exp(largest score - log-sum)
    if keep is not None:
        p.mul_(keep)
    lead = len(rows.k)
    return torch.bmm(p.to(v.dtype), v).view(lead, -1, v.shape[2]), lse.view(lead, -1, 1)


def _backward(
    rows: _Tokens, plan: BatchedPlan, g: Tensor, out: Tensor, lse: Tensor, keeps: list[Tensor], dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients (lead, rows, width) of the scaled q, of k and of v, in the dtype of the scores."""
    left = iter(keeps)
    dq, dk, dv = (torch.zeros_like(x, dtype=rows.wide) for x in rows[:3])
    g, out = (x.reshape(rows.v.shape) for x in (g, out))
    # The log-sums, and the dot products of g and the output, as one tensor: one gather instead of two.
    sums = _padded(torch.cat([lse, (g.to(rows.wide) * out).sum(dim=-1, keepdim=True)], dim=-1), plan)
    g = _padded(g / (1.0 - dropout) if dropout else g, plan)
    for piece in (piece for part in plan.rounds for piece in part):
        qt, gt, st = (_take(x, piece.queries, piece.units) for x in (rows.q, g, sums))
        kt, vt = (_take(x, piece.keys, piece.units) for x in (rows.k, rows.v))
        p = _scores(rows, piece, qt, kt).sub_(st[..., :1]).exp_()
        slope = torch.bmm(gt, vt.mT).to(rows.wide)
        kept = p
        if dropout:
            keep = next(left)
            slope.mul_(keep)
            kept = p * keep
        _add(dv, piece.keys, torch.bmm(kept.to(gt.dtype).mT, gt))
        slope = slope.sub_(st[..., 1:]).mul_(p).to(qt.dtype)
        _add(dk, piece.keys, torch.bmm(slope.mT, qt))
        _add(dq, piece.queries, torch.bmm(slope, kt))
    return dq[:, : plan.rows], dk, dv


def _add(total: Tensor, index: Tensor | None, y: Tensor) -> None:
    """Adds y (lead * units, rows per unit, width) to the indexed rows of `total` (lead, rows, width)."""
    y = y.to(total.dtype).view(len(total), -1, total.shape[2])
    if index is None:
        total.add_(y)
    else:
        total.index_add_(1, index, y)
