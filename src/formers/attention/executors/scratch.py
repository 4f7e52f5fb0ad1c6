"""Scratch buffers for intermediate results, allocated once and reused."""

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
"""The largest number of bytes that are cached between passes."""
_CACHED = threading.local()


class ScratchBuffers:
    """Scratch buffers by name, shared by tiles, schedules and rows that run one after the other.

    They are reused by the next pass of the thread, unless they are large: page faults of new memory cost more than the computation.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.held: dict[str, Tensor] = {}

    @classmethod
    @contextmanager
    def of(cls, like: Tensor, dtype: torch.dtype) -> Iterator[ScratchBuffers]:
        """The scratch buffers of a pass."""
        cached: dict[Any, ScratchBuffers] = _CACHED.__dict__.setdefault("buffers", {})
        which = (like.device, dtype)
        usual = not isinstance(like, FakeTensor) and not torch.is_inference_mode_enabled()
        buffers = cached.pop(which, None) if usual else None
        buffers = cls(like.new_empty(0), dtype) if buffers is None else buffers
        yield buffers
        if usual and sum(x.nbytes for x in buffers.held.values()) <= MOST:
            cached[which] = buffers

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised buffer of a shape."""
        size = math.prod(shape)
        held = self.held.get(name)
        if held is None or held.numel() < size:
            held = self.held[name] = self.like.new_empty(size, dtype=self.dtype)
        return held[:size].view(shape)

    def rows(self, name: str, x: Tensor, which: Tensor) -> Tensor:
        """The rows of x (n, width) with the given indices."""
        return torch.index_select(x, 0, which, out=self.take(name, len(which), x.shape[1]))

    def zeros(self, name: str, like: Tensor) -> Tensor:
        """Zeros of the shape of another tensor."""
        return self.take(name, *like.shape).zero_()

    def product(self, name: str, a: Tensor, b: Tensor | float) -> Tensor:
        """a * b, of the shape of a."""
        return torch.mul(a, b, out=self.take(name, *a.shape))
