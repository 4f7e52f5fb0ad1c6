"""Attention dropout with FlexAttention, exactly, by two calls.

o_i = sum_{j kept} a_ij v_j / (1 - p)  =  o'_i exp(l'_i - l_i) / (1 - p)

o' and l' are the attention over the kept keys alone and its log-sum, l the log-sum over all visible keys. Whether a pair is kept is a hash
of the key and of a random number of (batch, head, query), drawn on the device by torch's generator: both passes compute it again, and
nothing of the size of the scores is stored. The hash is Wellons' lowbias32 in int32 arithmetic, which wraps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.attention.executors.flex_kernel import MaskMod, dynamic

GOLDEN = 0x9E3779B9 - 2**32
"""2^32 divided by the golden ratio, as a negative int32: spreads successive keys over all numbers."""
HALF = 1 << 31


def draw_seeds(batch: int, heads: int, queries: int, device: torch.device) -> Tensor:
    """A random number for every query, (batch, heads, queries) int32."""
    return dynamic(torch.randint(-HALF, HALF, (batch, heads, queries), dtype=torch.int32, device=device), 0, 2)


def kept(mask: MaskMod, seeds: Tensor, threshold: Tensor) -> MaskMod:
    """A mask with the pairs that dropout keeps: those whose hash, of 31 bits, is at least the threshold () int32."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask(batch, head, query, key) & (hash31(seeds[batch, head, query], key) >= threshold)

    return seen


def hash31(seed: Tensor, key: Tensor) -> Tensor:
    """A hash of 31 bits of a seed and a key, int32: every bit depends on all bits of both."""
    x = seed + key.to(torch.int32) * GOLDEN
    x = (x ^ _shifted(x, 16)) * 0x7FEB352D
    x = (x ^ _shifted(x, 15)) * (0x846CA68B - 2**32)
    return (x ^ _shifted(x, 16)) & (HALF - 1)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """An int32 shifted to the right, filled with zeros."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def threshold(rate: float) -> int:
    """The smallest hash that is kept at a dropout rate."""
    return round(rate * HALF)


def combined(some: Tensor, log_kept: Tensor, log_all: Tensor, rate: float) -> Tensor:
    """o from o' (batch, heads, queries, value_dim) and the log-sums (batch, heads, queries); 0 for queries without kept keys."""
    empty = log_kept == float("-inf")
    # Both log-sums are replaced where one is minus infinity, so that no gradient is NaN.
    share = log_kept.masked_fill(empty, 0.0) - log_all.masked_fill(empty, 0.0)
    weight = share.exp().masked_fill(empty, 0.0) / (1.0 - rate)
    return (some.to(weight.dtype) * weight[..., None]).to(some.dtype)
