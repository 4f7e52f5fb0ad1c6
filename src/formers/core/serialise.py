"""State serialisation: values of tensors and plain numbers, written as JSON and named tensors, and read back.

Only dataclasses marked `@serialisable` are written. Reading constructs only such classes, by name, so a file cannot construct anything
else. A field with `metadata={"serialised": False}` is not written and gets its default when read.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

from formers.core.errors import FormersError

C = TypeVar("C")

KINDS: dict[str, type] = {}
RENAMED = {
    "Aligning": "BridgeState",
    "Bucketed": "LSHCache",
    "Cache": "KVCache",
    "Carried": "RecurrentMemory",
    "Comb": "StridedPositions",
    "Hidden": "HiddenMemory",
    "Index": "ExplicitPositions",
    "Scattered": "SubsetPositions",
    "Tail": "ConvMemory",
    "Tails": "ConvMemories",
}
"""Class names in files of earlier versions, and the current names."""
TENSOR = "tensor"


def serialisable(cls: type[C]) -> type[C]:
    """Registers a dataclass that may be written to a file and read back."""
    if cls.__name__ in KINDS:
        raise TypeError(f"a serialisable class {cls.__name__} already exists, and files store class names: choose another name.")
    KINDS[cls.__name__] = cls
    return cls


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Converts a value to JSON; its tensors, detached and on the CPU, are added to `tensors` under numbered names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        name = f"{TENSOR}.{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous()
        return {TENSOR: name}
    if isinstance(value, tuple):
        return [pack(v, tensors) for v in value]
    if KINDS.get(type(value).__name__) is not type(value):
        raise TypeError(f"{type(value).__name__} cannot be written to a file: make it a dataclass marked @serialisable.")
    return {"kind": type(value).__name__, **{f.name: pack(getattr(value, f.name), tensors) for f in _fields(type(value))}}


def unpack(packed: Any, tensors: dict[str, Tensor], device: torch.device | str = "cpu") -> Any:
    """The inverse of `pack`: the value, with its tensors on a device."""
    if isinstance(packed, list):
        return tuple(unpack(v, tensors, device) for v in packed)
    if not isinstance(packed, dict):
        return packed
    if packed.keys() == {TENSOR}:
        # A copy: tensors read from one file share one block of memory.
        return tensors[packed[TENSOR]].clone().to(device)
    name = str(packed.get("kind"))
    kind = KINDS.get(RENAMED.get(name, name))
    if kind is None:
        raise FormersError(f"the state contains an unknown class {packed.get('kind')!r}: use the version of formers that wrote it.")
    # A missing field was added after the file was written: it gets its default.
    return kind(**{f.name: unpack(packed[f.name], tensors, device) for f in _fields(kind) if f.name in packed})


def join_rows(parts: list[tuple[Any, dict[str, Tensor]]]) -> tuple[Any, dict[str, Tensor]]:
    """Merges values that were packed separately for different rows: tensors are concatenated and row counts added."""
    first, tensors = parts[0]
    rows = sum(packed["batch"] for packed, _ in parts)
    if any({**packed, "batch": 0} != {**first, "batch": 0} for packed, _ in parts):
        raise FormersError("the state files of the processes do not match: resume with the number of processes that wrote them.")
    return {**first, "batch": rows}, {name: torch.cat([t[name] for _, t in parts]) for name in tensors}


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.metadata.get("serialised", True)]
