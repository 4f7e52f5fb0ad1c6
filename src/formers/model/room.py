"""How many tokens of a row a stack can read: only real ones count against the end of its positions, patterns and projections.

Padded rows are compacted: the real tokens of each row come first, and padding follows. Where the padded length does not fit, the places
behind the longest row are left out. To know its length the mask is read, which waits for the device: so this is done there alone, and not
while a graph is compiled, where padding counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import State
from formers.core.compiler import concrete
from formers.model.spec import Spec


class Room:
    """The places that a stack has for the tokens of a row."""

    def __init__(self, spec: Spec) -> None:
        self.most, self.extra = spec.room, spec.extra
        self.patterns = [pattern for _, pattern in spec.layers if pattern.room is not None]

    def fit(self, x: Tensor, mask: Tensor | None, state: State | None) -> tuple[int, int]:
        """The first places of the compacted rows of x (batch, length, dim) that hold all real tokens, and a position that none reaches.

        All places where they fit behind the tokens of the state, and where numbers cannot be read; then padding counts as tokens.
        """
        length = x.shape[1]
        stop = length if state is None else state.bound + length
        if self.most is None or stop <= self.most or not concrete(x):
            return length, stop
        start = 0 if state is None else state.next
        if mask is not None:
            counts = mask.sum(dim=1)
            length, stop = (max(1, number) for number in torch.stack([counts.max(), (counts + start).max()]).tolist())
        elif isinstance(start, Tensor):
            stop = int(start.max()) + length
        if stop > self.most:  # positions and projections refuse this themselves, but a causal pattern does not know where a row ends
            for pattern in self.patterns:
                pattern.of(self.extra + stop)
        return length, stop
