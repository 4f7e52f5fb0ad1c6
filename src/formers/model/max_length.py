"""The largest length of rows; only real tokens count against the limits of positions, patterns and projections.

Padded rows are compacted: the real tokens of each row come first, then padding. If the padded length exceeds the limit, the padding
after the longest row is cut off. This reads the mask, which synchronises with the device: so it is done only in this case, and not in
compiled graphs, where padding counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import ExplicitPositions, FormersError, Positions, Range, State, compact
from formers.core.compiler import concrete
from formers.core.context import Compaction
from formers.core.positions import EMPTY
from formers.model.spec import Spec


def check_rows(given: Tensor, mask: Tensor | None, what: str) -> None:
    """Raises FormersError for rows (batch, length, ...) without tokens, and for a mask of another shape or dtype."""
    batch, length = given.shape[:2]
    if length == 0:
        raise FormersError(f"the {what} got no tokens: give at least one.")
    if mask is not None and not isinstance(mask, Tensor):
        raise FormersError(f"mask is a {type(mask).__name__}: give a bool tensor of shape ({batch}, {length}), True = a real token.")
    if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
        raise FormersError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}: give bool of shape ({batch}, {length}), True = a real token."
        )


class MaxLength:
    """The length limit of a stack."""

    def __init__(self, spec: Spec) -> None:
        self.most, self.extra, self.origin = spec.max_length, spec.extra, spec.memory.origin
        self.patterns = [pattern for _, pattern in spec.layers if pattern.max_length is not None]

    def fit(self, x: Tensor, mask: Tensor | None, state: State | None) -> tuple[int, int]:
        """The compacted length of the rows of x (batch, length, dim) that contains all real tokens, and the stop of their positions.

        The full length if it fits after the tokens of the state, or if values cannot be read; padding then counts as tokens.
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
        if stop > self.most:  # positions and projections check this themselves; a causal pattern needs this check
            for pattern in self.patterns:
                pattern.of(self.extra + stop)
        return length, stop

    def place(self, given: Tensor, mask: Tensor | None, state: State | None) -> tuple[Tensor, Positions, Compaction | None]:
        """Rows (batch, length, ...) with their real tokens first, their positions, and the compaction; None without a mask."""
        batch, length = given.shape[:2]
        places, stop = self.fit(given, mask, state)
        past = None if state is None or state.empty else state
        where = Range(self.origin, places) if past is None else past.next_positions(places, given.device)
        if mask is None:
            return given, ExplicitPositions(where.index, stop) if isinstance(where, ExplicitPositions) else where, None
        packed = compact(mask) if places == length else compact(mask).first(places)
        if past is not None:
            where = ExplicitPositions(where.tensor(given.device).expand(batch, places).masked_fill(~packed.valid, EMPTY), stop)
        return packed.apply(given), where, packed
