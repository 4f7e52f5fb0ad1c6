"""Attention by torch's scaled_dot_product_attention: the same function as dense, without its matrix where torch has a fused kernel."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Causal


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why the fused kernel cannot compute this; None if it can."""
    if request.keys.length == 0:
        return "there are no keys at all"
    return None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by the fused kernel."""
    if is_plainly_causal(request):
        return scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=request.dropout, scale=request.scale)
    allowed = request.mask(q.device)
    bias = request.added(q.dtype, allowed)
    if bias is not None:
        allowed = bias
    if allowed is not None and allowed.dim() == 3:
        allowed = allowed[None]  # torch has kernels for masks of two and of four dimensions only
    return scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=request.dropout, scale=request.scale)


def masks(request: Request) -> str:
    """How the kernel is masked."""
    return "with the kernel's own causal mask" if is_plainly_causal(request) else request.mask_words()


def is_plainly_causal(request: Request) -> bool:
    """Whether the request's mask is the kernel's causal mask."""
    # is_causal aligns queries and keys at their first element, which is correct only if both are the same tokens.
    alone = request.valid is None and request.bias is None and request.first is None
    return isinstance(request.pattern, Causal) and alone and isinstance(request.queries, Range) and request.queries == request.keys
