"""Cached tables: positions, masks, plans.

Tables computed under torch's fake-tensor mode have shapes but no values and must not be reused outside it. So each fake mode has a
separate cache.
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

from formers.core.content import weights_version

Make = TypeVar("Make", bound=Callable[..., Any])


def cached(size: int) -> Callable[[Make], Make]:
    """A decorator like lru_cache(maxsize=size) for functions that return tables, with separate caches for fake tensors."""

    def around(make: Make) -> Make:
        real = lru_cache(maxsize=size)(make)
        fake: dict[str, Any] = {"mode": None, "make": None}

        @wraps(make)
        def table(*key: Any) -> Any:
            mode = active_fake_mode() if is_in_torch_dispatch_mode() else None
            if mode is None:
                return real(*key)
            if mode is not fake["mode"]:  # the tables of the previous mode are dropped
                fake.update(mode=mode, make=lru_cache(maxsize=size)(make))
            return fake["make"](*key)

        return table  # type: ignore[return-value]

    return around


ROWS = 256
"""The rows of a table computed from a weight are rounded up to a multiple of this, so that a growing sequence can reuse it."""
_DERIVED: Any = WeakIdKeyDictionary()


def cached_table(weight: Tensor, dtype: torch.dtype, rows: int, make: Callable[[int], Tensor], which: Hashable = None) -> Tensor:
    """The first rows of a table (n, rows, width) that make(rows) computes from a weight, in the given dtype.

    Without gradients the table is cached until the weight's values change (`core.content.weights_version`), however they were written.
    `which` distinguishes several tables of one weight.
    """
    now = None if torch.is_grad_enabled() else weights_version(weight)
    if now is None:
        return make(rows).to(dtype)
    tables = _DERIVED.setdefault(weight, {})
    known = tables.get((dtype, which))
    if known is None or known[0] is not now or known[1].shape[1] < rows:
        known = tables[dtype, which] = (now, make(-(-rows // ROWS) * ROWS).to(dtype))
    table: Tensor = known[1]
    return table[:, :rows]
