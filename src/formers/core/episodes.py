"""Episodes inside a stream: a token sees those of its own episode alone.

first(t) = the position of the token that t's episode begins with          j is seen by t only if j >= first(t)

An episode is a run of equal ids. Positions go on counting through the ends of episodes: only who may be seen changes, so that the keys
of a stream need not know of episodes, and a state needs two numbers a row: the id of the episode that it is in, and where that began.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.core.positions import Positions


class Episodes(NamedTuple):
    """Of every token of a stream, (batch, length) each."""

    ids: Tensor
    begins: Tensor
    """Whether an episode begins with the token, other than the one that the state was in."""
    first: Tensor
    """The position of the first token of its episode."""


def follow(ids: Tensor, positions: Positions, before: Tensor | None, first: Tensor | int) -> Episodes:
    """The episodes of tokens with ids (batch, length), behind a state in episode `before` (batch,), which began at `first` (batch,).

    Where `before` is None the state, and what it has read, belongs to the episode of the first id.
    """
    last = torch.cat([(ids[:, :1] if before is None else before[:, None]), ids[:, :-1]], dim=1)
    begins = ids != last
    here = positions.tensor(ids.device).expand(ids.shape)
    starts = torch.where(begins, here, -1)
    start = torch.as_tensor(first, device=ids.device).expand(len(ids))
    starts[:, 0] = torch.maximum(starts[:, 0], start)
    return Episodes(ids, begins, starts.cummax(dim=1).values)
