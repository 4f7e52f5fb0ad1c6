"""Checks of values that cost a wait on an accelerator: token ids, classes and targets in a plain forward pass.

On the host they are always made. Off the host reading a value is a wait, so they are made only if the environment variable FORMERS_DEBUG
is 1. `train`, `eval` and `generate` need no such setting: they check ids on the host, before the copy.
"""

from __future__ import annotations

import os

from torch import Tensor

from formers.core.compiler import concrete
from formers.core.devices import on_host

VARIABLE = "FORMERS_DEBUG"


def debugging() -> bool:
    """Whether the environment variable FORMERS_DEBUG is 1."""
    return os.environ.get(VARIABLE) == "1"


def checks_values(x: Tensor) -> bool:
    """Whether the values of a tensor are checked in a forward pass: on the host, or with FORMERS_DEBUG=1 on any device."""
    return concrete(x) and (on_host(x) or debugging())
