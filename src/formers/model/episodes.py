"""Rows that hold several episodes: who may have them, and how they pass from a state to the next.

A token sees the tokens of its own episode alone, in the memory and in the row (core/episodes.py). This asks for parts that know distances
only: what is added to positions, or to a token by where it stands in the row, would have to begin anew.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from formers.attention import DotProduct
from formers.core import Context, FormersError, State
from formers.core.episodes import track_episodes
from formers.depth import Adaptive
from formers.feedforward import SeparableConv
from formers.model.spec import Spec
from formers.patterns import Causal, Local
from formers.recurrent import Recurrent


def obstacle(spec: Spec) -> str | None:
    """Why rows of a spec's model cannot hold several episodes; None where they can."""
    if not spec.is_causal or spec.encoder is not None:
        return "it sees later tokens, or reads a source"
    if spec.position.absolute:
        return f"its {type(spec.position).__name__} positions count from the first token of a row"
    if spec.memory.origin:
        return "its memory of zeros stands before the first token of a row alone"
    for attention, pattern in spec.layers:
        if not isinstance(attention, DotProduct | Recurrent):
            return f"its {type(attention).__name__} does not know where an episode begins"
        if not isinstance(pattern, Causal | Local):
            return f"its pattern {type(pattern).__name__} counts from the first token of a row"
    if isinstance(spec.feedforward, SeparableConv):
        return "its SeparableConv looks over the ends of episodes"
    return "its Adaptive depth looks at some tokens alone" if isinstance(spec.depth, Adaptive) else None


def entering(
    spec: Spec, context: Context, ids: Tensor | None, state: State | None, mask: Tensor | None, batch: int, length: int
) -> Context:
    """The stream with its episodes: those of ids (batch, length), or the one that the state is in; as it is where there are none."""
    before = None if state is None else state.episode
    if ids is None:
        if before is None:
            return context
        ids = before[:, None].expand(batch, length)
    why = obstacle(spec)
    if why is not None:
        raise FormersError(f"{spec.name or 'this model'} cannot read several episodes in a row, because {why}: use gtrxl, or rnn.")
    if mask is not None:
        raise FormersError("episodes and mask are both given, and a row of episodes has no padding: leave mask out.")
    if not isinstance(ids, Tensor) or ids.shape != (batch, length) or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise FormersError(f"episodes are {got}: give integers of shape ({batch}, {length}), the id of each token's episode.")
    start = 0 if state is None or state.first is None else state.first
    return replace(context, episodes=track_episodes(ids, context.positions, before, start))


def leaving(context: Context, state: State | None) -> State | None:
    """The state behind a stream, in the episode of its last token."""
    if state is None or context.episodes is None:
        return state
    return replace(state, episode=context.episodes.ids[:, -1].clone(), first=context.episodes.first[:, -1].clone())
