"""Integer handles for values, because custom operators of torch take integers, but no patterns or rules."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)


class HandleTable(Generic[V]):
    """Assigns an integer handle to each value, and returns the value for a handle."""

    def __init__(self) -> None:
        self.numbers: dict[V, int] = {}
        self.values: list[V] = []
        self.lock = Lock()

    def number(self, value: V) -> int:
        """The handle of a value."""
        with self.lock:
            if value not in self.numbers:
                self.numbers[value] = len(self.values)
                self.values.append(value)
            return self.numbers[value]

    def __getitem__(self, number: int) -> V:
        return self.values[number]
