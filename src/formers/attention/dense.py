"""Scaled dot-product attention as the equation says: the oracle for every other executor.

a_ij = exp(q_i . k_j / sqrt(d_h)) / sum_{r in S_i} exp(q_i . k_r / sqrt(d_h))     E1
o_i  = sum_{j in S_i} a_ij v_j                                                     E2

The square root stands inside the exponential, and d_h is the width of one head (the blog prints both otherwise). A query without
keys gives 0. From Vaswani et al., 2017, section 3.2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.attention.request import Request


def refuses(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why dense attention cannot do this: it always can."""
    return None


def weights(q: Tensor, k: Tensor, request: Request) -> Tensor:
    """The attention weights (batch, heads, queries, keys): rows sum to 1, or to 0 where a query has no keys."""
    scores = (q * request.scale) @ k.transpose(-2, -1)  # scaled first: half precision overflows otherwise
    allowed = request.mask(q.device)
    bias = request.added(scores.dtype)
    if bias is not None:
        scores = scores + bias
        open_by_bias = bias != float("-inf")
        allowed = open_by_bias if allowed is None else allowed & open_by_bias
    if allowed is None:
        return torch.softmax(scores, dim=-1) if k.shape[-2] else scores  # E1
    some = allowed.any(dim=-1, keepdim=True)
    # A row without keys is given scores of 0 before and weights of 0 after the softmax, so that its gradient is 0, too.
    scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(~some, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)  # E1


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by the full matrix of weights."""
    a = weights(q, k, request)
    if request.dropout:
        a = torch.dropout(a, request.dropout, train=True)
    return a @ v  # E2
