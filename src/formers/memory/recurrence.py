"""Segment-level recurrence (Dai et al., 2019, section 3.2): attention to the hidden states of past segments, without gradients into them.

h~ = [SG(m) ; h]          m the memory, h the segment; queries from h, keys and values from h~         E50
m' = last M of [m ; h]    m holds the input of each layer, including the embedding                   E52

A state contains the hidden states m. A pass with gradients computes keys and values from them, so that their weights get gradients from
the memory, even if m was computed without gradients. A pass without gradients also caches the keys and values, and reuses them while the
weights are unchanged.

The memory starts empty, and missing tokens are not attended to. With start="zeros" it starts as `length` zero vectors that are
attended to, as in the authors' code and in the Transformer-XL of transformers.
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
