"""Whether weights are still what they were: a mark that changes with their content.

Keys, values and tables that were computed from weights may be reused only while the weights hold the same numbers. Version counters
cannot say so: fused optimisers, `.data`, EMA and weight averaging write without counting. So the content is compared, byte by byte, with
a copy. This costs about 20 microseconds for 65,000 weights on a CPU; on other devices it would wait for the device, and is not done.

Within one call of ours (generation, evaluation, a rollout) nothing writes weights. `fixed_weights` says so, and nothing is compared there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakIdKeyDictionary


class _Here(threading.local):
    scope: object | None = None


_HERE = _Here()
_KNOWN: Any = WeakIdKeyDictionary()
"""By the first of some weights: what is known of their content."""


class _Known:
    """A mark, the scope in which it needs no comparison, and copies of the weights to compare with."""

    def __init__(self, weights: tuple[Tensor, ...], scope: object | None) -> None:
        self.mark, self.scope, self.ids = object(), scope, tuple(map(id, weights))
        self.copies = [(w.dtype, _bytes(w).copy()) for w in weights] if scope is None else None

    def holds(self, weights: tuple[Tensor, ...]) -> bool:
        """Whether the weights are byte for byte the copies."""
        if self.copies is None or not all(map(_comparable, weights)):
            return False
        both = zip(weights, self.copies, strict=True)
        return all(weight.dtype == kind and np.array_equal(_bytes(weight), copy) for weight, (kind, copy) in both)


@contextmanager
def fixed_weights() -> Iterator[None]:
    """A scope in which no weight changes: what is computed from weights is kept until the outermost one ends."""
    before = _HERE.scope
    _HERE.scope = object() if before is None else before
    try:
        yield
    finally:
        _HERE.scope = before


def mark(*weights: Tensor) -> object | None:
    """An object that is the same as long as the weights hold the same numbers; None where comparing them is not possible or not cheap."""
    if torch.compiler.is_compiling() or any(is_functorch_wrapped_tensor(w) for w in weights):
        return None
    scope = _HERE.scope
    if scope is None and not all(map(_comparable, weights)):
        return None
    known = _KNOWN.get(weights[0])
    if known is None or known.ids != tuple(map(id, weights)) or not (known.scope is scope is not None or known.holds(weights)):
        known = _KNOWN[weights[0]] = _Known(weights, scope)
    known.scope = scope
    result: object = known.mark
    return result


def _comparable(weight: Tensor) -> bool:
    """Whether the numbers of a tensor can be read at once, without waiting for a device."""
    return type(weight) in (Tensor, nn.Parameter) and weight.device.type == "cpu" and weight.is_contiguous()


def _bytes(weight: Tensor) -> Any:
    """The memory of a contiguous tensor on the CPU, as integers."""
    flat = weight.detach().reshape(-1).view(torch.uint8).numpy()
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat
