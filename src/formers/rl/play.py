"""One episode of an agent, step by step: what it saw, did and got, and where its attention went.

The weights are those of the explicit path (E1), one row a step: over the steps of the episode up to that one, by layer and head.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from formers.core import FormersError
from formers.core.random import derive_seed, generator
from formers.heads import PolicyValue
from formers.model import Model
from formers.model.model import StackModel
from formers.rl.environments import Environments, episode_seeds

LONGEST = 2000
"""Steps of an episode that are drawn at the most."""


@dataclass
class Played:
    """An episode; lists have one entry a step."""

    env: str
    frames: list[list[str]] = field(default_factory=list)
    """The environment in lines of text, before the action."""
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)
    """The same as images (height, width, 3), where the environment draws itself."""
    actions: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    weights: list[NDArray[np.float32]] = field(default_factory=list)
    """(layers, heads, steps so far): how much of each step's attention goes to which step of the episode; no layers of a recurrent one."""
    success: bool = False

    @property
    def attention(self) -> NDArray[np.float32]:
        """(steps, layers, heads, steps), 0 where a step had not yet been."""
        steps = len(self.weights)
        whole = np.zeros((steps, *self.weights[0].shape[:2], steps), np.float32)
        for t, row in enumerate(self.weights):
            whole[t, :, :, : row.shape[2]] = row
        return whole


def play(model: Model, environments: Environments, *, seed: int = 0, episode: int = 0, sample: bool = False) -> Played:
    """Plays one episode, which (seed, episode) decide; environments has one copy."""
    head = model.spec.head
    assert isinstance(head, PolicyValue)
    assert isinstance(model, StackModel)
    if environments.copies != 1:
        raise FormersError(f"an episode is played in one copy, and there are {environments.copies}: make the environment with copies=1.")
    played, state, random = Played(environments.name), model.initial_state(1), generator(seed, "play", episode)
    seeds = episode_seeds(derive_seed(seed, "evaluation"), np.zeros(1, np.int64), np.full(1, episode, np.int64))
    seen = environments.reset(np.ones(1, np.bool_), seeds)
    ids = torch.zeros(1, 1, dtype=torch.long)
    dtype = next(model.parameters()).dtype
    for t in range(LONGEST):
        looked = model.inspect(torch.from_numpy(seen).to(dtype)[:, None], state=state, episodes=ids)
        out = looked.output
        assert out.logits is not None
        assert out.value is not None
        assert out.state is not None
        can = environments.allowed()
        policy = head.policy(out.logits, None if can is None else torch.from_numpy(can)[:, None])
        action = (policy.sample(random) if sample else policy.mode())[:, 0]
        picture = environments.picture()
        if picture is not None:
            played.pictures.append(picture)
        played.frames.append(environments.draw())
        played.weights.append(_past([w[0, :, 0] for w in looked.attention], t + 1, model.spec.heads))
        step = environments.step((action if head.choices else head.bounded(action)).numpy())
        played.actions.append(str(action[0].tolist()))
        played.rewards.append(float(step.reward[0]))
        played.values.append(float(out.value[0, 0]))
        seen, state = step.observation, out.state
        if step.terminated[0] or step.truncated[0]:
            played.success = bool(step.success[0])
            return played
    return played


def _past(layers: list[torch.Tensor], steps: int, heads: int) -> NDArray[np.float32]:
    """Weights (heads, keys) of each layer, over the steps of the episode (layers, heads, steps): the last key is the step itself."""
    found = np.zeros((len(layers), heads, steps), np.float32)
    for i, weights in enumerate(layers):
        n = min(weights.shape[1], steps)
        found[i, :, steps - n :] = weights[:, weights.shape[1] - n :].float().numpy()
    return found
