"""Episodes inside a sequence: a token attends only to tokens of its own episode.

first(t) = the position of the first token of t's episode          t may attend to j only if j >= first(t)

An episode is a run of equal ids. Positions continue across episode boundaries; only the allowed keys change. So cached keys carry no
episode id, and a state needs two numbers per row: the id of the current episode, and its first position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.core.positions import Positions


class Episodes(NamedTuple):
    """Episode data of every token; each tensor is (batch, length)."""

    ids: Tensor
    begins: Tensor
    """Whether a new episode begins with the token, i.e. its id differs from the token before it, or from the state's episode."""
    first: Tensor
    """The position of the first token of the token's episode."""


def track_episodes(ids: Tensor, positions: Positions, before: Tensor | None, first: Tensor | int) -> Episodes:
    """The episodes of tokens with ids (batch, length), after a state in episode `before` (batch,) that began at `first` (batch,).

    If `before` is None, the state and its past tokens belong to the episode of the first id.
    """
    last = torch.cat([(ids[:, :1] if before is None else before[:, None]), ids[:, :-1]], dim=1)
    begins = ids != last
    here = positions.tensor(ids.device).expand(ids.shape)
    starts = torch.where(begins, here, -1)
    start = torch.as_tensor(first, device=ids.device).expand(len(ids))
    starts[:, 0] = torch.maximum(starts[:, 0], start)
    return Episodes(ids, begins, starts.cummax(dim=1).values)
