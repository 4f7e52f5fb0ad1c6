"""The memory slot: what a member carries from one training segment to the next."""

from __future__ import annotations

from formers.core import Slot


class Memory(Slot):
    """The past, in training."""

    @property
    def limit(self) -> int | None:
        """How many tokens of the past are kept at the most; None where the pattern alone decides."""
        return None

    @property
    def origin(self) -> int:
        """Position of the first token of a row: how many vectors of zeros come before it, which are attended to."""
        return 0


class NoMemory(Memory):
    """Every segment stands alone; decoding still has its exact cache."""
