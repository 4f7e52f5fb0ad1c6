"""Reproducible random numbers: a generator is a pure function of its keys."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily


def derive_seed(seed: int, *keys: int | str) -> int:
    """A seed of 63 bits that is a function of (seed, keys): the same on every machine."""
    digest = hashlib.sha256(repr((seed, *keys)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, *keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator keyed by (seed, keys), e.g. (seed, layer, step): the same keys give the same numbers everywhere."""
    made = torch.Generator(device)
    made.manual_seed(derive_seed(seed, *keys))
    return made


def hash_integers(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each integer, the same on every machine (splitmix64; Steele et al., 2014)."""
    x = (numbers + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fresh_seed() -> int:
    """A seed drawn from torch's global generator: setting or restoring that generator reproduces it."""
    with unset_fake_temporarily():  # fake tensors have no values
        return int(torch.randint(1 << 62, (), device="cpu"))


def fresh_seeds(count: int) -> Tensor:
    """Seeds (count,) drawn as by `fresh_seed`, on the CPU: each call of a compiled graph draws a new tensor, but no new integer."""
    if torch.compiler.is_compiling():
        return torch.randint(1 << 62, (count,), device="cpu")
    return torch.tensor([fresh_seed() for _ in range(count)], dtype=torch.int64, device="cpu")
