"""Tables that are made once and kept: positions, masks, plans.

Under torch's fake tensors, which have a shape and no numbers, a kept table would be the wrong kind for whoever comes next. So each
fake mode has tables of its own, and real ones are neither used nor harmed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary

from formers.core.content import mark

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


ROWS = 256
"""A table that is made of a weight has a multiple of so many rows: it serves a stream that grows for a while."""
_DERIVED: Any = WeakIdKeyDictionary()


def derived(weight: Tensor, dtype: torch.dtype, rows: int, make: Callable[[int], Tensor], which: Hashable = None) -> Tensor:
    """The first rows of a table (n, rows, width) that make(rows) computes from a weight, in a type.

    Without gradients it is kept as long as the weight holds the same numbers (`core.content.mark`), however they were written.
    `which` distinguishes the tables of one weight.
    """
    now = None if torch.is_grad_enabled() else mark(weight)
    if now is None:
        return make(rows).to(dtype)
    tables = _DERIVED.setdefault(weight, {})
    known = tables.get((dtype, which))
    if known is None or known[0] is not now or known[1].shape[1] < rows:
        known = tables[dtype, which] = (now, make(-(-rows // ROWS) * ROWS).to(dtype))
    table: Tensor = known[1]
    return table[:, :rows]
