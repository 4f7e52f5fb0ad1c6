"""The C++ compiler that torch.compile would call, and whether the values of a tensor can be read."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor

COMPILERS = ("g++", "clang++", "cl")


@lru_cache(maxsize=1)
def compiler() -> str | None:
    """The path of the C++ compiler, or None if there is none; the compiler is not started."""
    wanted = [name for name in (os.environ.get("CXX"), *COMPILERS) if name]
    return next((path for name in wanted if (path := shutil.which(name))), None)


def concrete(x: Tensor) -> bool:
    """Whether the values of a tensor can be read: not under torch.compile, torch.func or fake tensors, nor on the meta device."""
    return not (torch.compiler.is_compiling() or isinstance(x, FakeTensor) or x.is_meta or is_functorch_wrapped_tensor(x))
