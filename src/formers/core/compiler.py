"""The C++ compiler that torch.compile would call."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache

COMPILERS = ("g++", "clang++", "cl")


@lru_cache(maxsize=1)
def compiler() -> str | None:
    """Where the C++ compiler stands, None where there is none; it is not started."""
    wanted = [name for name in (os.environ.get("CXX"), *COMPILERS) if name]
    return next((path for name in wanted if (path := shutil.which(name))), None)
