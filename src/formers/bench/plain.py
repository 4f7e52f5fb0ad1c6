"""A minimal decoder on nn.Linear and scaled_dot_product_attention, as the baseline of the benches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KVCache = tuple[Tensor, Tensor]
"""The keys and values (batch, heads, n, head_dim) of what one block has read."""


class PlainBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, past: KVCache | None = None) -> tuple[Tensor, KVCache]:
        """The output of the block, and the keys and values of all tokens so far, those of `past` first."""
        batch, length, dim = x.shape
        q, k, v = (t.view(batch, length, self.heads, dim // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(dim, dim=-1))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class PlainDecoder(nn.Module):
    """Embedding, learned positions, blocks, norm, tied head."""

    def __init__(self, vocab: int, dim: int, heads: int, layers: int, hidden: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.zeros(length, dim))
        self.blocks = nn.ModuleList(PlainBlock(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def read(self, tokens: Tensor, past: list[KVCache] | None = None) -> tuple[Tensor, list[KVCache]]:
        """Logits (batch, length, vocab) of tokens that continue the caches, and the new caches."""
        start = 0 if past is None else past[0][0].shape[2]
        x, caches = self.tokens(tokens) + self.positions[start : start + tokens.shape[1]], []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if past is None else past[i])
            caches.append(cache)
        return F.linear(self.norm(x), self.tokens.weight), caches

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the targets."""
        logits, _ = self.read(tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    @torch.inference_mode()
    def write(self, tokens: Tensor, new: int) -> Tensor:
        """The tokens and `new` more after them, generated greedily."""
        logits, past = self.read(tokens)
        for _ in range(new):
            last = logits[:, -1:].argmax(dim=-1)
            tokens = torch.cat([tokens, last], dim=1)
            logits, past = self.read(last, past)
        return tokens
