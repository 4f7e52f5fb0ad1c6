"""The Image Transformer from its papers, one image at a time: loops over positions, dense attention under a mask made by loops.

Nothing of the library computes here; weights are read by name from a model's state_dict.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

Place = tuple[int, int, int]


def places(height: int, width: int, cells: int, block: tuple[int, int] | None) -> list[Place]:
    """Row, column and channel of each position, block after block."""
    h, w = block or (height, width)
    found = []
    for top, left in itertools.product(range(0, height, h), range(0, width, w)):
        for y, x in itertools.product(range(top, min(top + h, height)), range(left, min(left + w, width))):
            found += [(y, x, c) for c in range(cells)]
    return found


def mask_1d(n: int, query: int, memory: int) -> Tensor:
    """The own block causally, and so many positions before it."""
    return torch.tensor([[i // query * query - memory <= j <= i for j in range(n)] for i in range(n)])


def mask_2d(order: list[Place], query: tuple[int, int], memory: tuple[int, int]) -> Tensor:
    """Of the rectangle around the own block, extended above and to both sides: what comes before in the order."""
    (h, w), (above, beside) = query, memory
    n = len(order)
    mask = torch.zeros(n, n, dtype=torch.bool)
    for t, (row, column, _) in enumerate(order):
        top, left = row // h * h, column // w * w
        for s, (y, x, _) in enumerate(order[: t + 1]):
            mask[t, s] = top - above <= y < top + h and left - beside <= x < left + w + beside
    return mask


def sinusoid(place: int, width: int) -> Tensor:
    """[sin, cos] with time scales from 1 to 10,000."""
    scales = width // 2
    step = math.log(10000.0) / max(scales - 1, 1)
    angles = [place * math.exp(-k * step) for k in range(scales)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def norm(x: Tensor, gain: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer normalisation."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / (variance + epsilon).sqrt() * gain + bias


def dense_attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int, mask: Tensor) -> Tensor:
    """Softmax over the whole matrix, head by head; no biases."""
    q, k, v = (x @ qkv.T).chunk(3, dim=-1)
    width = q.shape[-1] // heads
    found = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = (q[:, part] @ k[:, part].T / math.sqrt(width)).masked_fill(~mask, -math.inf)
        found.append(scores.softmax(dim=-1) @ v[:, part])
    return torch.cat(found, dim=-1) @ out.T


def model_output(
    weights: dict[str, Tensor], stream: Tensor, order: list[Place], mask: Tensor, *, cells: int, levels: int, heads: int, layers: int,
    epsilon: float,
) -> Tensor:  # fmt: skip
    """The output (positions, numbers) for a stream: levels (positions,), or pixels (positions, channels) in [-1, 1]."""
    rows = []
    for t, (row, column, channel) in enumerate(order):
        if stream.dim() == 1:
            table = weights["embedding.values"]
            dim = table.shape[1]
            embedded = [table[int(v) + levels * order[s][2]] * math.sqrt(dim) for s, v in enumerate(stream)]
        else:
            dim = len(weights["embedding.into.bias"])
            embedded = [(weights["embedding.into.weight"] @ f + weights["embedding.into.bias"]).clamp(min=0) for f in stream]
        before = embedded[t - 1] if t else torch.zeros(dim, dtype=torch.float64)
        rows.append(before + torch.cat([sinusoid(row, dim // 2), sinusoid(column * cells + channel, dim // 2)]))
    x = torch.stack(rows)
    for layer in range(layers):
        own = {name.removeprefix(f"stack.depth.blocks.{layer}."): value for name, value in weights.items() if f".blocks.{layer}." in name}
        y = dense_attention(x, own["attention.qkv.weight"], own["attention.out.weight"], heads, mask)
        x = norm(x + y, own["residual_attention.norm.weight"], own["residual_attention.norm.bias"], epsilon)
        y = (x @ own["feedforward.into.weight"].T + own["feedforward.into.bias"]).clamp(min=0)
        y = y @ own["feedforward.out.weight"].T + own["feedforward.out.bias"]
        x = norm(x + y, own["residual_feedforward.norm.weight"], own["residual_feedforward.norm.bias"], epsilon)
    return x @ weights["head.weight"].T + weights.get("head.bias", torch.zeros((), dtype=torch.float64))
