"""Evaluating an agent: every copy plays the same number of fresh episodes, so that short ones do not count more.

IQM = the mean of the middle half of the returns (Agarwal et al., 2021), with the interval that 95 % of bootstrap samples lie in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from formers.core import FormersError
from formers.core.content import fixed_weights
from formers.core.random import derive_seed, generator
from formers.heads import PolicyValue
from formers.model import Model
from formers.model.modes import evaluating
from formers.rl.environments import Environments, episode_seeds
from formers.rl.rollout import Finished

BOOTSTRAP = 2000
LONGEST = 100_000
"""Steps after which an evaluation gives up on episodes that do not end."""


class Report(NamedTuple):
    """What an evaluation came to."""

    episodes: list[Finished]

    def figures(self) -> dict[str, Any]:
        """Means over all episodes, and the interquartile mean with its interval."""
        returns = np.array([e.total for e in self.episodes])
        low, high = interval(returns)
        return {
            "episodes": len(self.episodes),
            "mean_return": float(returns.mean()),
            "iqm_return": iqm(returns),
            "iqm_low": low,
            "iqm_high": high,
            "success": float(np.mean([e.success for e in self.episodes])),
            "length": float(np.mean([e.length for e in self.episodes])),
        }


def iqm(values: NDArray[np.float64]) -> float:
    """The mean of the middle half, values at its ends counted by their share."""
    ordered, n = np.sort(values, axis=-1), values.shape[-1]
    weight = np.clip(np.minimum(np.arange(1, n + 1) - n / 4, n - n / 4 - np.arange(n)), 0.0, 1.0)
    return float((ordered * weight).sum() / weight.sum())


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """Between what the interquartile means of 95 % of bootstrap samples lie."""
    random = np.random.default_rng(seed)
    drawn = random.choice(values, size=(BOOTSTRAP, len(values)))
    means = sorted(iqm(row) for row in drawn)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def evaluate(
    model: Model,
    environments: Environments,
    episodes: int,
    *,
    seed: int = 0,
    sample: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> Report:
    """Plays so many episodes of fresh seeds; the most probable action of each step, unless they are sampled."""
    head = model.spec.head
    assert isinstance(head, PolicyValue)
    n, dtype = environments.copies, next(model.parameters()).dtype
    quota = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    fresh = derive_seed(seed, "evaluation")
    random = generator(seed, "evaluation")
    counts, totals, lengths = np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64)
    rows = np.arange(n)
    seen, state, found = environments.reset(np.ones(n, np.bool_), episode_seeds(fresh, rows, counts)), model.initial_state(n), []
    with evaluating(model), torch.no_grad(), fixed_weights():
        for _ in range(LONGEST):
            ids = torch.from_numpy(counts.copy())[:, None]
            out = model(torch.from_numpy(seen).to(dtype)[:, None], state=state, episodes=ids)
            assert out.logits is not None
            state = out.state
            can = environments.allowed()
            policy = head.policy(out.logits, None if can is None else torch.from_numpy(can)[:, None])
            action = (policy.sample(random) if sample else policy.mode())[:, 0]
            step = environments.step((action if head.choices else head.bounded(action)).numpy())
            totals, lengths = totals + step.reward, lengths + 1
            done = step.terminated | step.truncated | step.restarted
            for i in map(int, np.flatnonzero(done)):
                if counts[i] < quota[i] and not step.restarted[i]:
                    found.append(Finished(float(totals[i]), int(lengths[i]), bool(step.success[i])))
            if len(found) >= episodes:
                return Report(found)
            if progress is not None:
                progress(len(found), episodes)
            totals[done], lengths[done] = 0.0, 0
            counts = counts + (done & ~step.restarted)
            seen = environments.reset(done, episode_seeds(fresh, rows, counts)) if done.any() else step.observation
    raise FormersError(f"{environments.name} has not ended {episodes} episodes in {LONGEST:,} steps: give it a time limit.")
