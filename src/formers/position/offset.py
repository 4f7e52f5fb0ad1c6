"""Random starts in training: every row is placed somewhere along the positions (Dehghani et al., 2018, section 3.3).

i <- i + s        s drawn from 0 ... offset for each row in each pass of the training; s = 0 in evaluation        E101

A model that is trained on short rows from position 0 on has never met the positions of a longer one. With random starts it meets all of
them below length + offset, and cannot learn by heart which one comes first: it learns what stands beside what.

The start is the same at every depth step, and for both sides of a pair. (tensor2tensor draws one start for all rows of a batch, below the
batch's own length, anew at every step and in each stack, and in evaluation, too.) Numbers come from torch's global generator, as those of
dropout do, which training seeds anew in every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import ExplicitPositions, Positions


class RandomStarts(dict[int, Tensor]):
    """A side channel of the forward context: the starts (batch, 1) that a pass has drawn, by offset; encoder and decoder share them."""


def random_start(positions: Positions, offset: int, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
    """Positions (batch, length) that begin anywhere in 0 ... offset; `starts` holds what this pass has drawn, by offset."""
    if offset not in starts:
        starts[offset] = torch.randint(offset + 1, (batch, 1), device=device)
    return ExplicitPositions(positions.tensor(device) + starts[offset], positions.stop + offset)  # E101
