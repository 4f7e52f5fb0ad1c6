"""One small instance of each layer that maps x to y, by name; add new layers here to test them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from formers.layers import ACT, AdaptiveSpanAttention, LSHAttention, RelativeAttention, SelfAttention, TransformerBlock
from formers.layers.base import Layer
from formers.patterns import BigBird, Causal, Fixed, Local, PerHead, Strided
from formers.residual import Gated
from formers.score import Relative

DIM, HEADS = 16, 2

CAUSAL: dict[str, Callable[[], Layer]] = {
    "causal": lambda: SelfAttention(DIM, HEADS, Causal()),
    "strided": lambda: SelfAttention(DIM, HEADS, Strided(stride=3), bias=False, head_dim=3, value_dim=5),
    "fixed": lambda: SelfAttention(DIM, HEADS, Fixed(stride=4, summary=1)),
    "per-head": lambda: SelfAttention(DIM, HEADS, PerHead(Local(window=3), Causal())),
    "lsh": lambda: LSHAttention(DIM, HEADS, Causal(), chunk=2, buckets=4, rounds=3),
    "relative": lambda: RelativeAttention(DIM, HEADS, Causal(), clamp=6),
    "relative with a memory": lambda: RelativeAttention(DIM, HEADS, memory=40),
    "span": lambda: AdaptiveSpanAttention(DIM, HEADS, span=6, ramp=3, init=0.4, penalty=0.1),
    "dynamic span": lambda: AdaptiveSpanAttention(DIM, HEADS, span=6, ramp=3, kind="dynamic", penalty=0.1),
    "fixed span": lambda: AdaptiveSpanAttention(DIM, HEADS, span=4, kind="fixed"),
    "block": lambda: TransformerBlock(DIM, HEADS, pattern=Causal()),
    "post-norm block": lambda: TransformerBlock(DIM, HEADS, 24, Local(window=4), "post", activation="relu"),
    "gated block": lambda: TransformerBlock(DIM, HEADS, 24, Causal(), Gated(), score=Relative(untied=True), memory=40),
    "act of a gru": lambda: ACT(nn.GRUCell(DIM + 1, DIM), steps=4, epsilon=0.3, bias=-0.5),
    "act of an lstm": lambda: ACT(nn.LSTMCell(DIM + 1, 5), steps=3, epsilon=0.3, bias=-0.5, act="t2t"),
    "act of the member's cell": lambda: ACT("tanh", DIM, steps=4, epsilon=0.3, bias=-0.5),
}
ALL: dict[str, Callable[[], Layer]] = {
    **CAUSAL,
    "full": lambda: SelfAttention(DIM, HEADS),
    "bigbird": lambda: SelfAttention(DIM, HEADS, BigBird(block=2, window=1, global_blocks=1, random_blocks=1)),
    "lsh that looks ahead": lambda: LSHAttention(DIM, HEADS, chunk=2, buckets=4),
    "relative that looks ahead": lambda: RelativeAttention(DIM, HEADS),
    "block that looks ahead": lambda: TransformerBlock(DIM, HEADS),
}


def made(build: Callable[[], Layer], dtype: torch.dtype = torch.float64) -> Layer:
    """A layer in evaluation mode with no parameter left at 0 or 1."""
    torch.manual_seed(5)
    layer = build().to(dtype).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return layer


def rows(length: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random x (batch, length, DIM)."""
    return torch.randn(batch, length, DIM, dtype=dtype)
