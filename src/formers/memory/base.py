"""The memory slot: what a member carries from one training segment to the next."""

from __future__ import annotations

from formers.core import Slot


class Memory(Slot):
    """The past, in training."""

    @property
    def limit(self) -> int | None:
        """How many tokens of the past are kept at the most; None where the pattern alone decides."""
        return None


class NoMemory(Memory):
    """Every segment stands alone; decoding still has its exact cache."""
