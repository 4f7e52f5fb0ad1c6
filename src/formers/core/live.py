"""Counts the memory of tensors as they come and go; with fake tensors nothing is allocated."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of the tensors that are made within it, as they come and go, and keeps the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in tree_leaves((args, kwargs)):
            self._meet(given, made=False)
        out = operation(*args, **(kwargs or {}))
        for given in tree_leaves(out):
            self._meet(given, made=True)
        self.peak = max(self.peak, self.now)
        return out

    def _meet(self, given: Any, made: bool) -> None:
        """Counts a tensor's storage where nobody has seen it yet: views share one, and what is given was there before."""
        if not isinstance(given, Tensor):
            return
        storage = given.untyped_storage()
        if id(storage) not in self.sizes:
            self.sizes[id(storage)] = storage.nbytes() if made else 0
            self.now += self.sizes[id(storage)]
            weakref.finalize(storage, self._part, id(storage))

    def _part(self, identity: int) -> None:
        self.now -= self.sizes.pop(identity)
