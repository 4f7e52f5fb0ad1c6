"""Detecting changed weights: a version object that is replaced when the values of the weights change.

Keys, values and tables computed from weights may be reused only while the weights keep the same values. Tensor version counters do not
detect every change: fused optimisers, `.data`, EMA and weight averaging write without incrementing them. So the values are compared with
a copy, byte by byte. This costs about 20 microseconds for 65,000 weights on a CPU. On other devices it would synchronise, so it is not
done there.

Weights do not change within one call of generation, evaluation or a rollout. These calls use `fixed_weights`, which skips the comparison.
Off the host this is the only way to cache anything, also values that the host reads from weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakIdKeyDictionary

from formers.core.devices import on_host


class _Here(threading.local):
    scope: object | None = None


_HERE = _Here()
_KNOWN: Any = WeakIdKeyDictionary()
"""The recorded content of each tuple of weights, by its first weight."""
_READ: Any = WeakIdKeyDictionary()
"""The version of a weight, and what was read of it."""
V = TypeVar("V")


class _Known:
    """A version object, the scope in which it is valid without a comparison, and copies of the weights."""

    def __init__(self, weights: tuple[Tensor, ...], scope: object | None) -> None:
        self.weights_version, self.scope, self.ids = object(), scope, tuple(map(id, weights))
        self.copies = [(w.dtype, _bytes(w).copy()) for w in weights] if scope is None else None

    def holds(self, weights: tuple[Tensor, ...]) -> bool:
        """Whether the weights are byte for byte the copies."""
        if self.copies is None or not all(map(_comparable, weights)):
            return False
        both = zip(weights, self.copies, strict=True)
        return all(weight.dtype == kind and np.array_equal(_bytes(weight), copy) for weight, (kind, copy) in both)


@contextmanager
def fixed_weights() -> Iterator[None]:
    """A scope in which no weight changes: what is computed from weights stays cached until the outermost scope ends."""
    before = _HERE.scope
    _HERE.scope = object() if before is None else before
    try:
        yield
    finally:
        _HERE.scope = before


def weights_version(*weights: Tensor) -> object | None:
    """An object that stays the same while the values of the weights do; None where comparing them is impossible or expensive."""
    if torch.compiler.is_compiling() or any(is_functorch_wrapped_tensor(w) for w in weights):
        return None
    scope = _HERE.scope
    if scope is None and not all(map(_comparable, weights)):
        return None
    known = _KNOWN.get(weights[0])
    if known is None or known.ids != tuple(map(id, weights)) or not (known.scope is scope is not None or known.holds(weights)):
        known = _KNOWN[weights[0]] = _Known(weights, scope)
    known.scope = scope
    result: object = known.weights_version
    return result


def cached_reading(weight: Tensor, read: Callable[[], V]) -> V | None:
    """What read() reads of a weight; off the host only while weights are fixed, and once, because it waits. None otherwise."""
    if on_host(weight):
        return read()
    version = weights_version(weight)
    if version is None:
        return None
    known = _READ.get(weight)
    if known is None or known[0] is not version:
        known = _READ[weight] = (version, read())
    result: V = known[1]
    return result


def _comparable(weight: Tensor) -> bool:
    """Whether the values of a tensor can be read without synchronising with a device."""
    return type(weight) in (Tensor, nn.Parameter) and on_host(weight) and weight.is_contiguous()


def _bytes(weight: Tensor) -> Any:
    """The memory of a contiguous tensor on the CPU, as integers."""
    flat = weight.detach().reshape(-1).view(torch.uint8).numpy()
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat
