"""Segment-level recurrence (Dai et al., 2019, section 3.2): the hidden states of the past are read again, and no gradient flows into them.

h~ = [SG(m) ; h]          m the memory, h the segment; queries from h, keys and values from h~         E50
m' = last M of [m ; h]    what each layer was given, the embedding among it                             E52

A state always holds the hidden states m. A pass with gradients computes keys and values from them, so that their weights learn from the
memory, also from one that was read without gradients. A pass without gradients keeps the keys and values beside m, and uses them again
as long as the weights hold the same numbers.

The memory begins empty: what is not there is not attended to. With start="zeros" it begins as `length` vectors of zeros that are
attended to, as in the authors' code and in transformers' Transformer-XL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from formers.memory.base import Memory


class Recurrence(Memory):
    """The last `length` hidden states of every layer, carried from segment to segment."""

    length: NonNegativeInt
    start: Literal["empty", "zeros"] = "empty"

    @property
    def origin(self) -> int:
        return self.length if self.start == "zeros" else 0

    @property
    def limit(self) -> int:
        return self.length
