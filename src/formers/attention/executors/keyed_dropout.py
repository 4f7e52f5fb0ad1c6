"""Dropout masks as a function of indices, for kernels that have no random numbers: a hash of a seed per query and of the key.

keep = hash(seed of (batch, head, query), key) mod 2^31 >= rate 2^31

So a weight is kept or dropped alike in both passes, whatever the order of the blocks, and nothing of the size of the scores is stored. All
arithmetic is int32 that wraps around, as on a GPU. The hash is the final mix of MurmurHash3 (Appleby, 2011). Only one is applied: torch
repeats every operand that is used twice while it compiles a mask, so that a chain of hashes would take minutes.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, SECOND = -2048144789, -1028477387
"""The multipliers 0x85EBCA6B and 0xC2B2AE35 of MurmurHash3's final mix, as int32."""
STEP = -1640531535
"""0x9E3779B1, an odd number near 2^32 divided by the golden ratio, as int32: separates neighbouring keys."""
HALF = 1 << 31


def dropout_seeds(batch: int, heads: int, queries: int, device: torch.device) -> Tensor:
    """Random seeds (batch, heads, queries) int32 from the device's own generator: drawing them does not wait for the device."""
    return torch.randint(-HALF, HALF, (batch, heads, queries), dtype=torch.int32, device=device)


def keep_mask(seeds: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, rate: float) -> Tensor:
    """Whether each weight is kept, with probability 1 - rate; indices are int32 that broadcast, seeds are from `dropout_seeds`."""
    x = seeds[batch, head, query] + STEP * key
    x = (x ^ _shifted(x, 16)) * FIRST
    x = (x ^ _shifted(x, 13)) * SECOND
    return ((x ^ _shifted(x, 16)) & (HALF - 1)) >= int(rate * HALF)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """An int32 shifted to the right and filled with zeros; int32's own shift would repeat the sign."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
