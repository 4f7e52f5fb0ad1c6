"""What a device can do. Paths are chosen by these capabilities, never by the name of a device.

The host is where Python runs. Reading a value of a tensor on another device waits until that device has finished all work before it, and
every operation there costs a kernel launch. So off the host nothing reads values, and rows, heads and tiles are dimensions of tensors, not
Python loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from formers.core.compiler import concrete


@dataclass(frozen=True)
class Capabilities:
    """What a type of device can do; the defaults are those of an unknown accelerator."""

    host: bool = False
    """Whether its tensors are in the host's memory: values are read without a wait, and small operations cost little."""
    flex: bool = False
    """Whether FlexAttention has kernels for both passes."""
    float64: bool = True
    tf32: bool = False
    """Whether float32 products can be computed in TF32."""
    pinned: bool = False
    """Whether copies from pinned memory of the host run asynchronously."""


_KNOWN: dict[str, Capabilities] = {
    "cpu": Capabilities(host=True),
    "meta": Capabilities(host=True),
    "cuda": Capabilities(flex=True, tf32=True, pinned=True),
    "xpu": Capabilities(flex=True, pinned=True),
    "mps": Capabilities(float64=False),
}


def capabilities(device: torch.device) -> Capabilities:
    """The capabilities of a device."""
    return _KNOWN.get(device.type, Capabilities())


@contextmanager
def assume_capabilities(device_type: str, assumed: Capabilities) -> Iterator[None]:
    """A context in which a type of device has other capabilities: a test device, or the CPU running the paths of an accelerator."""
    before = _KNOWN.get(device_type)
    _KNOWN[device_type] = assumed
    try:
        yield
    finally:
        if before is None:
            del _KNOWN[device_type]
        else:
            _KNOWN[device_type] = before


def on_host(x: Tensor) -> bool:
    """Whether a tensor is in the memory of the host."""
    return capabilities(x.device).host


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read at no cost: it is on the host, and neither traced nor fake."""
    return on_host(x) and concrete(x)


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it."""
    return torch.float64 if capabilities(device).float64 else torch.float32
