"""Random starts in training: the positions of each row are shifted by a random offset (Dehghani et al., 2018, section 3.3).

i <- i + s        s drawn from 0 ... offset for each row in each training pass; s = 0 in evaluation        E101

A model trained on short rows that start at position 0 has untrained embeddings for the positions of longer rows. With random starts it
is trained on all positions below length + offset, and must use relative order instead of memorising absolute positions.

The start is the same at every depth step, and for encoder and decoder. (tensor2tensor draws one start for all rows of a batch, below
the batch's length, again at every step and in each stack, and also in evaluation.) The numbers come from torch's global generator, as for
dropout; training seeds it at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import ExplicitPositions, Positions


class RandomStarts(dict[int, Tensor]):
    """A side channel of the forward context: the starts (batch, 1) drawn in a pass, by offset; encoder and decoder share them."""


def random_start(positions: Positions, offset: int, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
    """Positions (batch, length) that start at a random number in 0 ... offset; `starts` holds the numbers drawn in this pass, by offset."""
    if offset not in starts:
        starts[offset] = torch.randint(offset + 1, (batch, 1), device=device)
    return ExplicitPositions(positions.tensor(device) + starts[offset], positions.stop + offset)  # E101
