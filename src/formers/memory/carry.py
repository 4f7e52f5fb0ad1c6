"""The state of recurrent layers, carried from one training segment to the next: truncated back-propagation through time.

s_0 of a segment = SG(s_n of the segment before)        no gradient flows into it (Mikolov et al., 2010; Zaremba et al., 2014)
"""

from __future__ import annotations

from formers.memory.base import Memory


class Carry(Memory):
    """A recurrent state of fixed size; it may depend on all past tokens."""
