"""Rows with several episodes: which specs support them, and how a state tracks them.

A token sees only tokens of its own episode, in the memory and in the row (core/episodes.py). This needs parts that depend only on
distances: absolute positions, or patterns that depend on the position in the row, would have to restart.
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
    """Why rows of a spec's model cannot contain several episodes; None if they can."""
    if not spec.is_causal or spec.encoder is not None:
        return "it is not causal, or it has an encoder"
    if spec.position.absolute:
        return f"its {type(spec.position).__name__} positions count from the first token of a row"
    if spec.memory.origin:
        return "its memory of zeros comes only before the first token of a row"
    for attention, pattern in spec.layers:
        if not isinstance(attention, DotProduct | Recurrent):
            return f"its {type(attention).__name__} does not support episodes"
        if not isinstance(pattern, Causal | Local):
            return f"its pattern {type(pattern).__name__} counts from the first token of a row"
    if isinstance(spec.feedforward, SeparableConv):
        return "its SeparableConv would mix episodes"
    return "its Adaptive depth computes subsets of tokens" if isinstance(spec.depth, Adaptive) else None


def with_episodes(
    spec: Spec, context: Context, ids: Tensor | None, state: State | None, mask: Tensor | None, batch: int, length: int
) -> Context:
    """The context with the episodes of ids (batch, length), or with the state's episode; unchanged if there are none."""
    before = None if state is None else state.episode
    if ids is None:
        if before is None:
            return context
        ids = before[:, None].expand(batch, length)
    why = obstacle(spec)
    if why is not None:
        raise FormersError(f"{spec.name or 'this model'} does not support several episodes in a row, because {why}: use gtrxl, or rnn.")
    if mask is not None:
        raise FormersError("episodes and mask are both given, but rows with episodes have no padding: omit mask.")
    if not isinstance(ids, Tensor) or ids.shape != (batch, length) or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise FormersError(f"episodes are {got}: give integers of shape ({batch}, {length}), the id of each token's episode.")
    start = 0 if state is None or state.first is None else state.first
    return replace(context, episodes=track_episodes(ids, context.positions, before, start))


def state_with_episode(context: Context, state: State | None) -> State | None:
    """The state after a pass, with the episode of the last token."""
    if state is None or context.episodes is None:
        return state
    return replace(state, episode=context.episodes.ids[:, -1].clone(), first=context.episodes.first[:, -1].clone())
