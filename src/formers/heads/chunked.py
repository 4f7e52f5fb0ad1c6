"""Cross-entropy without storing the logits of all tokens (after Kitaev et al., 2020, section 3, who compute the loss in chunks).

L       = 1/|C| sum_i in C -t_i . log p_i       p_i = softmax(s h_i E^T + b), t_i the smoothed target of E15
dL/dh_i = s/|C| (p_i - t_i) E                   i in C, else 0
dL/dE   = s/|C| sum_i in C (p_i - t_i)^T h_i                                                E97
dL/db   = 1/|C| sum_i in C (p_i - t_i)          if the head has a bias

The loss of a chunk and its contribution to all gradients are computed from its logits at once. So nothing is computed twice, and the
backward pass only scales the gradients. Memory: the logits of one chunk, and the gradients, of the size of h and E.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formers.core import IGNORED
from formers.core.chunks import in_chunks
from formers.core.debug import checks_values
from formers.core.devices import on_host
from formers.heads.base import check_targets, mean, refuse_no_class, scale_logits, target_error, token_cross_entropy


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, smoothing: float, chunk: int, bias: Tensor | None = None
) -> Tensor:
    """The mean loss of targets (...), from hidden (..., dim), weight (vocab, dim) and bias (vocab), over the targets that are not -100.

    It is 0 if all are -100.
    """
    check_targets(targets, hidden.shape[:-1])
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in (hidden, weight, bias)):
        return mean(chunked_token_cross_entropy(hidden, weight, targets, scale, smoothing, chunk, bias), targets)
    device = hidden.device.type
    kind = hidden.dtype
    if torch.is_autocast_enabled(device) and kind != torch.float64:
        kind = torch.get_autocast_dtype(device)
    flat, goal = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    loss: Tensor = _Loss.apply(flat, weight, bias, goal, scale, smoothing, chunk, kind)  # type: ignore[no-untyped-call]
    return loss


def chunked_token_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, scale: float, smoothing: float, chunk: int, bias: Tensor | None = None
) -> Tensor:
    """`token_cross_entropy` of targets (...), in chunks."""
    check_targets(targets, hidden.shape[:-1])

    def nats(few: Tensor, goal: Tensor) -> Tensor:
        return token_cross_entropy(scale_logits(F.linear(few, weight), bias, scale), goal, smoothing)

    return in_chunks(nats, (hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)), chunk).view(targets.shape)


class _Loss(torch.autograd.Function):
    """The mean loss of hidden (n, dim) and its gradients, with products in the dtype `kind` and sums in at least float32."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, smoothing: float, chunk: int,
        kind: torch.dtype,
    ) -> Tensor:  # fmt: skip
        # One operation in a graph of torch.compile, which otherwise would have a copy of the loop's body for every chunk.
        compute = operation if torch.compiler.is_compiling() else _summed
        total, *slopes = compute(hidden, weight, bias, targets, scale, smoothing, chunk, kind, list(ctx.needs_input_grad[:3]))
        count = (targets != IGNORED).sum().clamp(min=1)
        ctx.save_for_backward(*slopes, count)
        ctx.scale, ctx.kind = scale, weight.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        to_hidden, to_weight, to_bias, count = ctx.saved_tensors
        by_hidden, by_weight, by_bias = ctx.needs_input_grad[:3]
        # Divided only here: in 16 bits, the errors of many targets would otherwise underflow.
        rate = slope * ctx.scale / count
        slopes = (
            to_hidden * rate if by_hidden else None,
            (to_weight * rate).to(ctx.kind) if by_weight else None,
            (to_bias * (slope / count)).to(ctx.kind) if by_bias else None,
        )
        return *slopes, *[None] * 5


def _summed(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, smoothing: float, chunk: int, kind: torch.dtype,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum of the losses of hidden (n, dim), and those of its gradients of hidden, weight and bias that are needed, unscaled."""
    by_hidden, by_weight, by_bias = needed
    to_hidden, to_weight, to_bias = _slopes(hidden, weight, bias, kind, needed)
    nats = []
    # Explicit casts instead of autocast, which would cache a copy of the table without gradients and reuse it where they are needed.
    with torch.autocast(hidden.device.type, enabled=False):
        table, wide = weight.to(kind), _wide(kind)
        for start in range(0, len(hidden), chunk):
            few, goal = hidden[start : start + chunk].to(kind), targets[start : start + chunk]
            logits = F.linear(few, table)
            if scale != 1.0:
                logits.mul_(scale)
            if bias is not None:
                logits.add_(bias.to(kind))
            scores = torch.log_softmax(logits, dim=-1, dtype=wide)
            del logits
            nats.append(_nats(scores, goal, smoothing))
            error = _error(scores, goal, smoothing)
            if by_bias:
                to_bias += error.sum(dim=0)
            error = error.to(kind)
            del scores
            if by_hidden:
                to_hidden[start : start + chunk] = error @ table  # E97
            if by_weight and kind == wide:
                torch.addmm(to_weight, error.T, few, out=to_weight)  # E97
            elif by_weight:
                to_weight += error.T @ few  # E97
            del error
    return torch.cat(nats).sum(), to_hidden, to_weight, to_bias


def _slopes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype, needed: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors for the gradients of hidden, weight and bias, empty if they are not needed."""
    by_hidden, by_weight, by_bias = needed
    return (
        torch.empty_like(hidden) if by_hidden else hidden.new_empty(0),
        torch.zeros_like(weight, dtype=_wide(kind)) if by_weight else weight.new_empty(0),
        torch.zeros_like(bias, dtype=_wide(kind)) if by_bias and bias is not None else weight.new_empty(0),
    )


def _wide(kind: torch.dtype) -> torch.dtype:
    return torch.promote_types(kind, torch.float32)


operation = torch.library.custom_op(
    "formers::chunked_loss", _summed, mutates_args=(),
    schema="(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, float scale, float smoothing, int chunk, ScalarType kind, "
    "bool[] needed) -> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, smoothing: float, chunk: int, kind: torch.dtype,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return hidden.new_empty((), dtype=_wide(kind)), *_slopes(hidden, weight, bias, kind, needed)


def _nats(scores: Tensor, goal: Tensor, smoothing: float) -> Tensor:
    """-t . log p of each target (n,), from log p (n, vocab); 0 where it is -100."""
    if not on_host(goal) and checks_values(goal):  # on the host the loss raises by itself
        refuse_no_class(goal, scores.shape[-1])
    try:
        nats = F.nll_loss(scores, goal, ignore_index=IGNORED, reduction="none")
    except IndexError:
        raise target_error(goal, scores.shape[-1]) from None
    if not smoothing:
        return nats
    return (1 - smoothing) * nats - smoothing * scores.mean(dim=-1).masked_fill(goal == IGNORED, 0.0)


def _error(scores: Tensor, goal: Tensor, smoothing: float) -> Tensor:
    """p - t (n, vocab), 0 where the target is -100; computed in place of log p."""
    error = scores.exp_()
    if smoothing:
        error -= smoothing / scores.shape[-1]
    ignored = (goal == IGNORED)[:, None]
    error.scatter_add_(1, goal[:, None].clamp(min=0), torch.full_like(ignored, smoothing - 1.0, dtype=error.dtype))
    return error.masked_fill_(ignored, 0.0)
