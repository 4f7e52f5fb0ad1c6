"""Scaled dot-product attention, literally as in the equation: the reference for every other executor.

a_ij = exp(q_i . k_j / sqrt(d_h)) / sum_{r in S_i} exp(q_i . k_r / sqrt(d_h))     E1
o_i  = sum_{j in S_i} a_ij v_j                                                     E2

The square root is inside the exponential, and d_h is the width of one head (the blog prints both otherwise). A query without
keys gives 0. From Vaswani et al., 2017, section 3.2.1. Half precision is computed in float32, and rounded at the end.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from formers.attention.executors.tiles import wide
from formers.attention.request import Request
from formers.score import ByDistance


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """None: dense attention can compute every request."""
    return None


def weights(q: Tensor, k: Tensor, request: Request) -> Tensor:
    """The attention weights (batch, heads, queries, keys) in the dtype of q: rows sum to 1, or to 0 for a query without keys."""
    with _exactly(q):
        return _weights(q, k, request).to(q.dtype)


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by the full matrix of weights, in the dtype of v."""
    with _exactly(q):
        a = _weights(q, k, request)
        if request.dropout:
            a = torch.dropout(a, request.dropout, train=True)
        return (a @ v.to(a.dtype)).to(v.dtype)  # E2


def _weights(q: Tensor, k: Tensor, request: Request) -> Tensor:
    """The attention weights in at least float32: scores may exceed the range of half precision."""
    dtype = wide(q.dtype)
    if isinstance(request.bias, ByDistance):
        request = request._replace(bias=request.bias.to(dtype))
    scores = (q.to(dtype) * request.scale) @ k.to(dtype).transpose(-2, -1)
    allowed = request.mask(q.device)
    bias = request.added(dtype)
    if bias is not None:
        scores = scores + bias
        open_by_bias = bias != float("-inf")
        allowed = open_by_bias if allowed is None else allowed & open_by_bias
    if allowed is None:
        return torch.softmax(scores, dim=-1) if k.shape[-2] else scores  # E1
    some = allowed.any(dim=-1, keepdim=True)
    # A row without keys gets scores of 0 before and weights of 0 after the softmax, so that its gradient is 0 too.
    scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(~some, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)  # E1


def _exactly(x: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast does not lower the precision of products."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
