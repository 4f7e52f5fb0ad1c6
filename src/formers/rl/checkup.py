"""Faults of an environment that are found before training: `formers doctor --env NAME`.

Every check is a sentence about what was tried, and None or what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError
from formers.rl.environments import Environments, episode_seeds, make
from formers.rl.spaces import Box, Discrete, MultiDiscrete

STEPS = 500
COPIES = 4


class Check(NamedTuple):
    """What was looked at, and what is wrong with it; None where nothing is."""

    what: str
    wrong: str | None


def check_environment(name: str, steps: int = STEPS) -> list[Check]:
    """Plays random actions and says what is wrong; a name that is unknown is refused."""
    env, again = make(name, COPIES), make(name, COPIES)
    try:
        return list(_checks(env, again, steps))
    finally:
        env.close()
        again.close()


def _checks(env: Environments, again: Environments, steps: int) -> Iterator[Check]:
    rows = np.arange(COPIES)
    every = np.ones(COPIES, np.bool_)
    seeds = episode_seeds(0, rows, np.zeros(COPIES, np.int64))
    try:
        seen, same = env.reset(every, seeds), again.reset(every, seeds)
    except FormersError as error:
        yield Check("the first observations are in the observation space", str(error))
        return
    yield Check("the first observations are in the observation space", None)
    yield Check(
        "reset(seed) gives the same episode again",
        None if np.array_equal(seen, same) else "two resets with one seed show different observations: seed everything from reset(seed)",
    )
    random, episodes, ended, cut = np.random.default_rng(0), np.zeros(COPIES, np.int64), 0, 0
    finite, repeats, largest, totals, returns = True, True, 0.0, np.zeros(COPIES), []
    for _ in range(steps):
        actions = _random(env, random)
        try:
            one, two = env.step(actions), again.step(actions)
        except FormersError as error:
            yield Check("observations stay in the observation space", str(error))
            return
        finite &= bool(np.isfinite(one.observation).all() and np.isfinite(one.reward).all())
        repeats &= np.array_equal(one.observation, two.observation) and np.array_equal(one.reward, two.reward)
        largest = max(largest, float(np.abs(one.reward).max()))
        totals = totals + one.reward
        done = one.terminated | one.truncated | one.restarted
        ended, cut = ended + int(one.terminated.sum()), cut + int(one.truncated.sum())
        if one.restarted.any():
            yield Check("no step raises an error", "a step raised an error; the log above says which")
            return
        if done.any():
            returns += totals[done].tolist()
            totals[done] = 0.0
            episodes = episodes + done
            seeds = episode_seeds(0, rows, episodes)
            env.reset(done, seeds)
            again.reset(done, seeds)
    yield Check("observations stay in the observation space", None)
    yield Check("observations and rewards are finite numbers", None if finite else "an observation or a reward is NaN or infinite")
    wrong = "the same seed and actions lead elsewhere: runs can be trained, but not resumed bit for bit"
    yield Check("the same seed and actions lead to the same steps", None if repeats else wrong)
    unending = f"no episode ended in {steps} random steps: give it a time limit, or train with a longer segment"
    yield Check("episodes end", None if ended + cut else unending)
    alike = len(returns) > 1 and len(set(returns)) == 1
    flat = f"all {len(returns)} episodes of random actions had the return {returns[0] if returns else 0:g}: nothing is learnt from these"
    yield Check("returns differ", flat if alike else None)
    large = f"rewards reach {largest:g}: scale them to about 1, or use algorithm=vmpo, which normalises values"
    yield Check("rewards are of a size that values can be fitted to", None if largest <= 100 else large)


def _random(env: Environments, random: np.random.Generator) -> NDArray[Any]:
    """Actions of every copy, drawn from all that can be taken."""
    space, can = env.action, env.allowed()
    if isinstance(space, Discrete):
        if can is not None:
            return np.array([random.choice(np.flatnonzero(row)) for row in can])
        return random.integers(space.n, size=env.copies)
    if isinstance(space, MultiDiscrete):
        return random.integers(np.array(space.counts), size=(env.copies, len(space.counts)))
    assert isinstance(space, Box)
    low, high = (np.nan_to_num(np.array(side), posinf=1.0, neginf=-1.0) for side in (space.low, space.high))
    return random.uniform(low, high, size=(env.copies, len(space.low)))
