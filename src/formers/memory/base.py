"""The memory slot: what is carried from one training segment to the next."""

from __future__ import annotations

from formers.core import Slot


class Memory(Slot):
    """The past tokens that training keeps between segments."""

    @property
    def limit(self) -> int | None:
        """The largest number of past tokens that are kept; None if only the pattern limits them."""
        return None

    @property
    def origin(self) -> int:
        """The position of the first token of a row: the number of zero vectors before it, which are attended to."""
        return 0


class NoMemory(Memory):
    """Segments are independent; decoding still has an exact cache."""
