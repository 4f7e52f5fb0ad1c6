"""Room for what is computed on the way and not kept: taken once, and used again."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

MOST = 1 << 26
"""Bytes of room that are kept from one pass to the next, at the most."""
KEPT = threading.local()


class ScratchBuffers:
    """Room for what tiles, lanes and rows compute, which they use one after the other.

    What a pass has used the next one of the thread finds again, unless it is much: pages that are new cost more than what is done there.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.held: dict[str, Tensor] = {}

    @classmethod
    @contextmanager
    def of(cls, like: Tensor, dtype: torch.dtype) -> Iterator[ScratchBuffers]:
        """The room of a pass."""
        rooms: dict[Any, ScratchBuffers] = KEPT.__dict__.setdefault("rooms", {})
        which = (like.device, dtype)
        usual = not isinstance(like, FakeTensor) and not torch.is_inference_mode_enabled()
        room = rooms.pop(which, None) if usual else None
        room = cls(like.new_empty(0), dtype) if room is None else room
        yield room
        if usual and sum(x.nbytes for x in room.held.values()) <= MOST:
            rooms[which] = room

    def take(self, name: str, *shape: int) -> Tensor:
        """Room of a shape, in which anything may stand."""
        size = math.prod(shape)
        held = self.held.get(name)
        if held is None or held.numel() < size:
            held = self.held[name] = self.like.new_empty(size, dtype=self.dtype)
        return held[:size].view(shape)

    def rows(self, name: str, x: Tensor, which: Tensor) -> Tensor:
        """The rows of x (n, width) that are named."""
        return torch.index_select(x, 0, which, out=self.take(name, len(which), x.shape[1]))

    def zeros(self, name: str, like: Tensor) -> Tensor:
        """Zeros of the shape of another tensor."""
        return self.take(name, *like.shape).zero_()

    def product(self, name: str, a: Tensor, b: Tensor | float) -> Tensor:
        """a b, of the shape of a."""
        return torch.mul(a, b, out=self.take(name, *a.shape))
