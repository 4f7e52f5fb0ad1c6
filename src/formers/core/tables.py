"""Tables that are made once and kept: positions, masks, plans.

Under torch's fake tensors, which have a shape and no numbers, a kept table would be the wrong kind for whoever comes next. So each
fake mode has tables of its own, and real ones are neither used nor harmed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary

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

    Where nothing is learnt it is kept as long as the weight stays as it is, or until somebody says `forget`: who writes through `.data`
    leaves no trace. `which` tells apart tables that are made of one weight.
    """
    if torch.compiler.is_compiling() or weight.is_inference():
        return make(rows).to(dtype)
    if torch.is_grad_enabled():
        _DERIVED.pop(weight, None)  # a fused optimiser, which may come next, does not count the weight's versions
        return make(rows).to(dtype)
    place = 0 if isinstance(weight, FakeTensor) else weight.data_ptr()
    mark, tables = (weight._version, place), _DERIVED.setdefault(weight, {})
    known = tables.get((dtype, which))
    if known is None or known[0] != mark or known[1].shape[1] < rows:
        known = tables[dtype, which] = (mark, make(-(-rows // ROWS) * ROWS).to(dtype))
    table: Tensor = known[1]
    return table[:, :rows]


def forget(weights: Iterable[Tensor]) -> None:
    """Lets go of the tables that are made of some weights."""
    for weight in weights:
        _DERIVED.pop(weight, None)
