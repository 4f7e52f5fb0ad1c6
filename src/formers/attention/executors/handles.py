"""Values by number, because the operations of torch take numbers and no patterns or rules."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)


class HandleTable(Generic[V]):
    """Gives each value that it meets a number, and the value back for it."""

    def __init__(self) -> None:
        self.numbers: dict[V, int] = {}
        self.values: list[V] = []
        self.lock = Lock()

    def number(self, value: V) -> int:
        """The number of a value."""
        with self.lock:
            if value not in self.numbers:
                self.numbers[value] = len(self.values)
                self.values.append(value)
            return self.numbers[value]

    def __getitem__(self, number: int) -> V:
        return self.values[number]
