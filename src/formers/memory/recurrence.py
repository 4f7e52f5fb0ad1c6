"""Segment-level recurrence (Dai et al., 2019, section 3.2): the hidden states of the past are read again, and no gradient flows into them.

h~ = [SG(m) ; h]          m the memory, h the segment; queries from h, keys and values from h~         E50
m' = last M of [m ; h]    what each layer was given, the embedding among it                             E52

Keys and values of the memory are made anew in training, so that their weights learn from it. Where nothing is learnt they are kept as
they are, which is the same and faster. The memory begins empty: what is not there is not attended to.
"""

from __future__ import annotations

from pydantic import NonNegativeInt

from formers.memory.base import Memory


class Recurrence(Memory):
    """The last `length` hidden states of every layer, carried from segment to segment."""

    length: NonNegativeInt

    @property
    def limit(self) -> int:
        return self.length
