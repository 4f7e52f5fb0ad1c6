"""Random numbers that can be replayed: a generator is a pure function of its keys."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator keyed by (seed, keys), e.g. (seed, layer, step): the same keys give the same numbers everywhere."""
    digest = hashlib.sha256(repr((seed, *keys)).encode()).digest()
    made = torch.Generator(device)
    made.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return made
