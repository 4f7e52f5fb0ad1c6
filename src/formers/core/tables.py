"""Tables that are made once and kept: positions, masks, plans.

Under torch's fake tensors, which have a shape and no numbers, a kept table would be the wrong kind for whoever comes next. So each
fake mode has tables of its own, and real ones are neither used nor harmed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from torch._guards import active_fake_mode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

Make = TypeVar("Make", bound=Callable[..., Any])


def kept(size: int) -> Callable[[Make], Make]:
    """Keeps the `size` tables that were last asked for of a function from hashable arguments to a table."""

    def around(make: Make) -> Make:
        real = lru_cache(maxsize=size)(make)
        fake: dict[str, Any] = {"mode": None, "make": None}

        @wraps(make)
        def table(*key: Any) -> Any:
            mode = active_fake_mode() if is_in_torch_dispatch_mode() else None
            if mode is None:
                return real(*key)
            if mode is not fake["mode"]:  # those of the last mode are let go
                fake.update(mode=mode, make=lru_cache(maxsize=size)(make))
            return fake["make"](*key)

        return table  # type: ignore[return-value]

    return around
