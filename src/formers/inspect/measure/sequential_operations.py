"""How many operations must follow one another: the longest chain of them between the input of a computation and its result.

depth(result) = 1 + the largest depth of what the operation read        0 for the input itself

What does not depend on the input (weights, tables of positions, masks) could have been made before, and has no depth. An operation is one
kernel of torch, whatever its size: a matrix product, a softmax over a whole row, a sum. Views and reshapes without a copy are none.

Depths are kept for each element of each piece of memory: operations that write disjoint slices of one buffer do not wait for each other,
and reading a slice waits for its writer only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOTHING = 0
"""Of what does not depend on the input; the input itself is at 1."""
OVERWRITES = ("copy_", "fill_", "zero_")
"""Operations in place that do not read what they write to."""
SWEEP = 512
"""After so many operations what is known of freed memory is forgotten."""


class Depths(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, every operation's depth is known; `begin` says what the input is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, StorageDepths] = {}
        self.count = 0

    def begin(self, x: Tensor) -> None:
        """Makes x the input."""
        self._memory(x).write(x, 1)

    def of(self, x: Tensor) -> int:
        """How many operations lie between the input and x."""
        return max(self._read(x) - 1, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = _tensors((args, kwargs))
        written = _written(func, args, kwargs)
        made = [x for x in _tensors(result) if _place(x) not in {_place(y) for y in given}]
        if written or made:  # else a view
            unread = written if func._schema.name.split("::")[1] in OVERWRITES or func._overloadname.endswith("out") else []
            before = max((self._read(x) for x in given if not any(x is y for y in unread)), default=NOTHING)
            depth = before + 1 if before else NOTHING
            for x in (*written, *made):
                self._memory(x).write(x, depth)
        self.count += 1
        if self.count % SWEEP == 0:
            self.known = {place: memory for place, memory in self.known.items() if not memory.freed}
        return result

    def _memory(self, x: Tensor) -> StorageDepths:
        place = _place(x)
        if place not in self.known:
            self.known[place] = StorageDepths(x)
        return self.known[place]

    def _read(self, x: Tensor) -> int:
        memory = self.known.get(_place(x))
        return NOTHING if memory is None else memory.read(x)


class StorageDepths:
    """The depths of the elements of one piece of memory: one number while all are alike, which they mostly are."""

    def __init__(self, x: Tensor) -> None:
        # While this reference lives, no other memory has the place.
        self.reference = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        self.size = x.element_size()
        self.depths: int | Tensor = NOTHING

    @property
    def freed(self) -> bool:
        """Whether the memory was freed."""
        return bool(self.reference.expired())  # type: ignore[no-untyped-call]

    def read(self, x: Tensor) -> int:
        """The largest depth among the elements of x."""
        if isinstance(self.depths, int):
            return self.depths
        here = self._within(self.depths, x)
        return int(here.max()) if here.numel() else NOTHING

    def write(self, x: Tensor, depth: int) -> None:
        """Gives all elements of x a depth."""
        size = x.untyped_storage().nbytes()
        if x.numel() * x.element_size() == size:
            self.depths = depth
            return
        if isinstance(self.depths, int):
            self.depths = torch.full((size // self.size,), self.depths, dtype=torch.int32)
        self._within(self.depths, x).fill_(depth)

    def _within(self, depths: Tensor, x: Tensor) -> Tensor:
        """The depths of the elements of x; of all where x counts its elements by another size."""
        return depths if x.element_size() != self.size else depths.as_strided(x.shape, x.stride(), x.storage_offset())


@contextmanager
def depths_from(*inputs: Tensor) -> Iterator[Depths]:
    """Within it depths are counted from the inputs on."""
    with torch.no_grad(), Depths() as depths:
        for x in inputs:
            depths.begin(x)
        yield depths


def depth_of(compute: Callable[..., Tensor | Sequence[Tensor]], *inputs: Tensor) -> int:
    """The longest chain of operations between the inputs and any of the results of compute(*inputs)."""
    with depths_from(*inputs) as depths:
        results = _tensors(compute(*inputs))
    return max(depths.of(x) for x in results)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _place(x: Tensor) -> int:
    """What all tensors over one piece of memory have in common."""
    return x.untyped_storage()._cdata


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operation writes to, as its schema says."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs[argument.name] if argument.name in kwargs else args[i] if i < len(args) else None
            found += _tensors(value)
    return found
