"""Random numbers that can be replayed: a generator is a pure function of its keys."""

from __future__ import annotations

import hashlib

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily


def key(seed: int, *keys: int | str) -> int:
    """A seed of 63 bits that is a function of (seed, keys): the same on every machine."""
    digest = hashlib.sha256(repr((seed, *keys)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, *keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator keyed by (seed, keys), e.g. (seed, layer, step): the same keys give the same numbers everywhere."""
    made = torch.Generator(device)
    made.manual_seed(key(seed, *keys))
    return made


def fresh() -> int:
    """A seed drawn from torch's own generator, so that whoever sets or restores that one has the same again."""
    with unset_fake_temporarily():  # fake tensors have no numbers
        return int(torch.randint(1 << 62, (), device="cpu"))
