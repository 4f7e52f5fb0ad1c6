"""How images that come without a split are divided: a keyed permutation, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from formers.core import FormersError
from formers.core.random import generator

HELD_OUT = 0.1
HOLD_OUT_NOTE = "{held:,} of {total:,} held out by a fixed permutation"


def permuted(total: int, sizes: Sequence[int]) -> list[list[int]]:
    """The numbers 0 ... total-1 in parts of these sizes, each in ascending order."""
    order = torch.randperm(total, generator=generator(0, "images", "split"))
    return [sorted(part.tolist()) for part in torch.split(order, list(sizes))]


def hold_out(total: int, name: str) -> tuple[list[int], list[int]]:
    """The numbers of the images to train on, and of the 10 % (at least one) that are held out."""
    if total < 2:
        raise FormersError(f"{name} has only {total} image to split: give at least two, one to train on and one to evaluate.")
    held = max(1, round(HELD_OUT * total))
    train, valid = permuted(total, (total - held, held))
    return train, valid
