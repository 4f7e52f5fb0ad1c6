"""Values made of tensors and plain numbers, as JSON and named tensors and back: how a state gets into a file.

A class that may be written is a dataclass marked `@stored`; reading builds only such classes, by name, so that a file cannot ask
for anything else. A field with `metadata={"stored": False}` is left to its default.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

from formers.core.errors import FormersError

C = TypeVar("C")

KINDS: dict[str, type] = {}
TENSOR = "tensor"


def stored(cls: type[C]) -> type[C]:
    """Marks a dataclass as one that may be written to a file and read back."""
    if cls.__name__ in KINDS:
        raise TypeError(f"there is a stored class {cls.__name__} already: files know classes by name; choose another.")
    KINDS[cls.__name__] = cls
    return cls


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors, detached and on the CPU, are added to `tensors` under numbered names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        name = f"{TENSOR}.{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous()
        return {TENSOR: name}
    if isinstance(value, tuple):
        return [pack(v, tensors) for v in value]
    if KINDS.get(type(value).__name__) is not type(value):
        raise TypeError(f"{type(value).__name__} cannot be written to a file: make it a dataclass marked @stored.")
    return {"kind": type(value).__name__, **{f.name: pack(getattr(value, f.name), tensors) for f in _fields(type(value))}}


def unpack(packed: Any, tensors: dict[str, Tensor], device: torch.device | str = "cpu") -> Any:
    """The value that `pack` made of it, its tensors on a device."""
    if isinstance(packed, list):
        return tuple(unpack(v, tensors, device) for v in packed)
    if not isinstance(packed, dict):
        return packed
    if packed.keys() == {TENSOR}:
        # A fresh copy: what was read shares one block of memory with its neighbours.
        return tensors[packed[TENSOR]].clone().to(device)
    kind = KINDS.get(str(packed.get("kind")))
    if kind is None:
        raise FormersError(f"{packed.get('kind')!r} is nothing that a state is made of: use the formers that wrote it.")
    # A field that is not there was added after the file was written: it has a default.
    return kind(**{f.name: unpack(packed[f.name], tensors, device) for f in _fields(kind) if f.name in packed})


def join_rows(parts: list[tuple[Any, dict[str, Tensor]]]) -> tuple[Any, dict[str, Tensor]]:
    """Values packed alike for different rows as one for all of them: tensors one behind the other, row counts added up."""
    first, tensors = parts[0]
    rows = sum(packed["batch"] for packed, _ in parts)
    if any({**packed, "batch": 0} != {**first, "batch": 0} for packed, _ in parts):
        raise FormersError("the rows of the state do not fit together: resume with as many processes as wrote it.")
    return {**first, "batch": rows}, {name: torch.cat([t[name] for _, t in parts]) for name in tensors}


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.metadata.get("stored", True)]
