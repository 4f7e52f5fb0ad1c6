"""Dropout masks as a function of indices: a counter-based hash of (seed, batch, head, query, key).

keep = hash(seed, batch, head, query, key) mod 2^31 >= rate 2^31

A kernel whose mask is a function of indices has no generator. So whether a weight is kept is a hash of its indices, the same in both
passes and whatever the order of the blocks. All arithmetic is int32 that wraps around, as on a GPU: no product of sizes can overflow. The
mixing steps are those of MurmurHash3 (Appleby, 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND = -2048144789, -1028477387
"""The multipliers 0x85EBCA6B and 0xC2B2AE35 of MurmurHash3's final mix, as int32."""
STEP = -1640531535
"""0x9E3779B1, an odd number near 2^32 divided by the golden ratio, as int32: separates neighbouring indices."""


def dropout_seed(device: torch.device) -> Tensor:
    """A random int32 scalar from the device's own generator: drawing it does not wait for the device."""
    return torch.randint(-(1 << 31), 1 << 31, (), dtype=torch.int32, device=device)


def keep_mask(seed: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, rate: float) -> Tensor:
    """Whether each weight is kept, with probability 1 - rate; indices are int32 tensors that broadcast, the seed is an int32 scalar."""
    row = _mixed(seed + STEP * batch)
    row = _mixed(row ^ (STEP * head + 1))
    row = _mixed(row ^ (STEP * query + 2))
    return (_mixed(row ^ _mixed(STEP * key + 3)) & 0x7FFFFFFF) >= int(rate * (1 << 31))


def _mixed(x: Tensor) -> Tensor:
    """MurmurHash3's final mix of 32 bits; the masks turn int32's arithmetic shifts into logical ones."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * FIRST
    x = (x ^ ((x >> 13) & 0x7FFFF)) * SECOND
    return x ^ ((x >> 16) & 0xFFFF)
