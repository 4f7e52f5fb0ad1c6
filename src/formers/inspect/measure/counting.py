"""Counts the FLOPs of a run, with formulas for the operations that torch does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from formers.attention.executors import blocked, distances
from formers.attention.lsh import kernel as hashed

Shape = tuple[int, ...]


def _fused(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of fused attention over every pair: q k^T, and the weights times v."""
    batch, heads, n, width = q
    return 2 * batch * heads * n * k[2] * (width + v[3])


def _fused_backward(gradient: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of its backward pass: q k^T once more, and the gradients of the weights, v, q and k."""
    batch, heads, n, width = q
    return 2 * batch * heads * n * k[2] * (3 * width + 2 * v[3])


def _blocked(q: Shape, k: Shape, v: Shape, valid: Shape | None, seeds: Shape | None, text: str, *_: Any, **__: Any) -> int:
    """FLOPs of attention by pieces."""
    return blocked.flops((q, v), text, (1, 1))


def _blocked_backward(
    g: Shape, q: Shape, k: Shape, v: Shape, valid: Shape | None, seeds: Shape | None, out: Shape, lse: Shape, text: str,
    *_: Any, **__: Any,
) -> int:  # fmt: skip
    """FLOPs of its backward pass, which computes the scores once more."""
    return blocked.flops((q, v), text, (3, 2))


def _distances(
    q: Shape, k: Shape, v: Shape, far: Shape, table: Shape, level: Shape | None, scale: float, offset: int, nearest: int,
    reaches: list[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """FLOPs of attention with a term by distance."""
    return distances.flops((q, k, v, far), offset, nearest, reaches, (1, 1, 1))


def _distances_backward(
    g: Shape, q: Shape, k: Shape, v: Shape, far: Shape, table: Shape, level: Shape | None, out: Shape, lse: Shape, kept: Shape,
    scale: float, offset: int, nearest: int, reaches: list[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """FLOPs of its backward pass, which computes the scores once more where the weights were not kept."""
    return distances.flops((q, k, v, far), offset, nearest, reaches, (2, 2, 2) if kept[0] else (3, 2, 3))


def _hashed(
    q: Shape, v: Shape, buckets: Shape, order: Shape, real: Shape | None, seed: Shape | None, rules: int, *_: Any, **__: Any
) -> int:
    """FLOPs of LSH attention in tiles, with buckets that are equally full."""
    return hashed.flops((q, v), buckets[2], rules, (1, 1))


def _hashed_backward(
    g: Shape, q: Shape, v: Shape, buckets: Shape, order: Shape, real: Shape | None, seed: Shape | None, out: Shape, lse: Shape,
    rules: int, *_: Any, **__: Any,
) -> int:  # fmt: skip
    """FLOPs of its backward pass, which computes the scores once more."""
    return hashed.flops((q, v), buckets[2], rules, (3, 2))


def _recurrent(x: Shape, weight: Shape, weight_h: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of the CPU's LSTM over rows: the products of its gates with inputs and with states."""
    return 2 * x[0] * x[1] * weight[0] * (weight[1] + weight_h[1])


def _recurrent_backward(x: Shape, weight: Shape, weight_h: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of its backward pass: the gradients of what is multiplied, and of what it is multiplied by."""
    return 2 * _recurrent(x, weight, weight_h)


# torch counts its fused attention on every device but this one, and knows nothing of ours.
FUSED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    torch.ops.formers.blocked: _blocked,
    torch.ops.formers.blocked_backward: _blocked_backward,
    torch.ops.formers.distances: _distances,
    torch.ops.formers.hashed: _hashed,
    torch.ops.formers.hashed_backward: _hashed_backward,
    torch.ops.formers.distances_backward: _distances_backward,
}


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts FLOPs, those of the CPU's fused attention and LSTM among them."""
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        yield counter


def by_operation(counter: FlopCounterMode) -> dict[str, int]:
    """FLOPs by the name of the torch operation, as in {"mm": 1024}."""
    found: dict[str, int] = {}
    for operation, count in counter.get_flop_counts().get("Global", {}).items():
        name = str(operation).split(".")[-1]
        found[name] = found.get(name, 0) + int(count)
    return found
