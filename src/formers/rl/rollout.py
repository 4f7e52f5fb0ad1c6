"""Rollouts: an agent acts in several copies of an environment for a segment, with the KV cache of its memory.

The memory is hidden states, and what is stored of it is stored once a segment: the state before its first step. Keys and values are made
of it with the weights of this rollout, then kept. Training computes the whole segment from that same state in one pass, and gets the same
probabilities, because a step sees the last `memory` steps of its own episode there and here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError, HiddenMemory, State
from formers.core.content import fixed_weights
from formers.core.random import generator
from formers.heads import PolicyValue
from formers.model import Model
from formers.model.modes import evaluating
from formers.rl.environments import Environments, episode_seeds
from formers.rl.environments.base import Arrays, Bools, Ints
from formers.rl.spaces import Floats

WINDOW = 200
"""The newest episodes that the figures on the way are means over."""


class Segment(NamedTuple):
    """`length` steps of every copy; tensors are (copies, length, ...)."""

    state: State
    """Before the first step."""
    observations: Tensor
    episodes: Tensor
    actions: Tensor
    logits: Tensor
    log_probs: Tensor
    values: Tensor
    next_values: Tensor
    """Of what was seen behind each step: at a time limit the value of the final observation, with its episode's memory."""
    rewards: Tensor
    terminated: Tensor
    done: Tensor
    allowed: Tensor | None
    """Which choices could be taken, where an environment says so."""


class Finished(NamedTuple):
    """An episode that has ended."""

    total: float
    """The sum of its rewards."""
    length: int
    success: bool


class Collector:
    """An agent's copies of an environment: where they are, and what the agent remembers of their episodes."""

    def __init__(self, model: Model, environments: Environments, seed: int) -> None:
        assert isinstance(model.spec.head, PolicyValue)
        self.model, self.environments, self.seed, self.head = model, environments, seed, model.spec.head
        n = environments.copies
        self.state = model.initial_state(n)
        self.episodes = np.zeros(n, np.int64)
        """How many episodes each copy has begun before the one that it is in: the id of that."""
        self.totals, self.lengths = np.zeros(n), np.zeros(n, np.int64)
        self.restarts = 0
        """How often a copy raised an error and was begun anew."""
        self.finished: deque[Finished] = deque(maxlen=WINDOW)
        self.ended = 0
        """How many episodes have ended."""
        self.observation = environments.reset(np.ones(n, np.bool_), self._seeds())
        self._check(self.observation, "the first observation", 0)

    def _seeds(self) -> Ints:
        return episode_seeds(self.seed, np.arange(self.environments.copies), self.episodes)

    @torch.no_grad()
    def collect(self, length: int, update: int) -> Segment:
        """The next `length` steps of every copy; actions are drawn from (seed, update)."""
        model, env = self.model, self.environments
        self.state = settled(self.state)
        start, state, dtype = self.state, self.state, next(model.parameters()).dtype
        random = generator(self.seed, "act", update)
        kept: dict[str, list[Tensor]] = {name: [] for name in ("observations", "episodes", "actions", "logits", "log_probs", "values")}
        after: list[Tensor | None] = []
        told: list[tuple[Tensor, ...]] = []
        masks: list[Tensor] = []
        with evaluating(model), fixed_weights():
            for t in range(length):
                seen, ids = torch.from_numpy(self.observation).to(dtype)[:, None], torch.from_numpy(self.episodes.copy())[:, None]
                out = model(seen, state=state, episodes=ids)
                assert out.logits is not None
                assert out.value is not None
                assert out.state is not None
                can = env.allowed()
                allowed = None if can is None else torch.from_numpy(can)[:, None]
                policy = self.head.policy(out.logits, allowed)
                action = policy.sample(random)
                state = out.state
                for name, value in zip(kept, (seen, ids, action, out.logits, policy.log_prob(action), out.value), strict=True):
                    kept[name].append(value)
                if allowed is not None:
                    masks.append(allowed)
                given = action[:, 0] if self.head.choices else self.head.bounded(action[:, 0])
                step = env.step(given.numpy())
                self._check(step.observation, "an observation", t, step.reward)
                done = step.terminated | step.truncated | step.restarted
                last = t == length - 1
                behind = None
                if last or (step.truncated | step.restarted).any():
                    final = torch.from_numpy(step.observation).to(dtype)[:, None]
                    behind = model(final, state=state, episodes=ids).value
                after.append(behind)
                told.append((torch.from_numpy(step.reward), torch.from_numpy(step.terminated), torch.from_numpy(done)))
                self._count(step.reward, done, step.success, step.restarted)
                self.observation = step.observation
                if done.any():
                    self.episodes = self.episodes + done
                    self.observation = env.reset(done, self._seeds())
                    self._check(self.observation, "the first observation of an episode", t)
        self.state = state
        whole = {name: torch.cat(values, dim=1) for name, values in kept.items()}
        rewards, terminated, over = (torch.stack(each, dim=1) for each in zip(*told, strict=True))
        values = whole["values"]
        next_values = torch.cat([values[:, 1:], values[:, -1:]], dim=1)
        for t, behind in enumerate(after):
            if behind is not None:
                next_values[:, t] = behind[:, 0] if t == length - 1 else torch.where(over[:, t], behind[:, 0], next_values[:, t])
        return Segment(
            start, **whole, next_values=next_values, rewards=rewards.to(values.dtype), terminated=terminated, done=over,
            allowed=torch.cat(masks, dim=1) if len(masks) == length else None,
        )  # fmt: skip

    def _count(self, reward: NDArray[np.float64], done: Bools, success: Bools, restarted: Bools) -> None:
        """Adds a step to the episodes, and ends those that are done; one that raised an error counts for nothing."""
        self.totals += reward
        self.lengths += 1
        if not done.any():
            return
        for i in map(int, np.flatnonzero(done)):
            if restarted[i]:
                self.restarts += 1
            else:
                self.finished.append(Finished(float(self.totals[i]), int(self.lengths[i]), bool(success[i])))
                self.ended += 1
        self.totals[done], self.lengths[done] = 0.0, 0

    def _check(self, seen: Floats, what: str, t: int, reward: NDArray[np.float64] | None = None) -> None:
        """Refuses observations and rewards that are not finite numbers."""
        good = np.isfinite(seen).all(axis=1)
        named = what
        if good.all() and reward is not None:
            good, named = np.isfinite(reward), "a reward"
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            raise FormersError(
                f"{self.environments.name} gave {named} that is not a finite number, in copy {i} at step {int(self.lengths[i]) + 1} of its "
                f"episode {int(self.episodes[i])}: fix the environment; what was saved before is kept."
            )

    def get_state(self) -> Arrays:
        """Where the copies are, beside the agent's memory, as arrays."""
        mine: Arrays = {name: getattr(self, name) for name in ("episodes", "totals", "lengths", "observation")}
        mine["finished"] = np.array([[e.total, e.length, e.success] for e in self.finished], np.float64).reshape(-1, 3)
        mine["counts"] = np.array([self.ended, self.restarts], np.int64)
        return {
            **{f"agent.{name}": a for name, a in mine.items()},
            **{f"env.{name}": a for name, a in self.environments.get_state().items()},
        }

    def set_state(self, saved: Arrays) -> None:
        """Goes back to what `get_state` gave."""
        mine = {name.removeprefix("agent."): a for name, a in saved.items() if name.startswith("agent.")}
        self.environments.set_state({name.removeprefix("env."): a for name, a in saved.items() if name.startswith("env.")})
        self.episodes, self.totals, self.lengths = (mine[name].copy() for name in ("episodes", "totals", "lengths"))
        self.observation = mine["observation"].copy()
        self.finished.clear()
        self.finished.extend(Finished(float(total), int(length), bool(success)) for total, length, success in mine["finished"])
        self.ended, self.restarts = (int(n) for n in mine["counts"])


def settled(state: State) -> State:
    """A state as it would be read from a file: hidden states alone, whose keys are made anew, in memory of their own."""
    state = state.map(lambda t: t.contiguous().clone())
    return replace(
        state, steps=tuple(tuple(replace(e, cached_kv=None) if isinstance(e, HiddenMemory) else e for e in step) for step in state.steps)
    )
