"""The difference of two results, and its limit for each precision.

d(x, y) = max |x - y| / max(1, max |y|)        y: the CPU's result in float64, from inputs rounded to the precision that is checked

float64 and float32 have fixed limits, which are far above rounding errors and far below those of a wrong result. Half precision rounds the
weights, the values and their gradients one after another: its limit is a few units of its rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNITS = 16
"""The limit of half precision, in units of its rounding."""
TYPES = {"float64": torch.float64, "float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {"float64": 1e-10, "float32": 1e-4, **{name: UNITS * torch.finfo(TYPES[name]).eps / 2 for name in ("bf16", "fp16")}}
"""The largest difference that rounding explains, by precision."""


def difference(ours: Tensor, right: Tensor) -> float:
    """The largest difference of two tensors, relative where the right values exceed 1; infinite for NaN or another shape."""
    if ours.shape != right.shape:
        return math.inf
    if right.numel() == 0:
        return 0.0
    largest = max(1.0, right.abs().max().item())
    found = (ours.detach().cpu().to(torch.float64) - right).abs().max().item() / largest
    return found if math.isfinite(found) else math.inf


def rounded(x: Tensor, precision: str) -> Tensor:
    """x in float64, rounded to a precision."""
    return x.to(TYPES[precision]).to(torch.float64)


def as_number(value: float) -> float | str:
    """A difference, ready for JSON."""
    return value if math.isfinite(value) else "not a number"


def brief(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0].rstrip('.')}"
