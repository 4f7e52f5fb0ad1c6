"""The precision of products: float32, float32 in TF32, or bf16 and fp16 by autocast.

TF32 rounds the factors of a product to 10 bits of mantissa and sums in float32: on NVIDIA GPUs since Ampere several times as fast as
float32. It is a setting of the process, so the contexts here restore what was set before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from formers.core.devices import capabilities

Precision = Literal["float32", "tf32", "bf16", "fp16"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The autocast context of a precision; none for float32 and TF32."""
    return torch.autocast(device.type, dtype=TYPES[precision]) if precision in TYPES else nullcontext()


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast does not lower the precision on the device of x; nothing is entered where it is off."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


@contextmanager
def float32_products(tf32: bool, device: torch.device) -> Iterator[None]:
    """A context in which float32 products of a device are computed in TF32, or are not; without effect on devices without TF32."""
    before = _settings() if capabilities(device).tf32 else None
    if before is None:
        yield
        return
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _settings() -> tuple[str, bool] | None:
    """The settings of products and convolutions; None where the user set flags of single backends, which torch reads by no other name."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


@contextmanager
def evaluation_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which a model is evaluated in a precision; float32 is float32, also where training uses TF32."""
    with float32_products(precision == "tf32", device), autocast(precision, device):
        yield
