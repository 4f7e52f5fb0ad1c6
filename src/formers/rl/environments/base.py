"""Several copies of an environment side by side, of which none restarts by itself.

Every episode is reset with a seed that is a function of (seed, copy, episode), so that a run can be repeated, and resumed without pickles:
embedded environments give their state as arrays, and others are reset with their seed and given the actions since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError
from formers.core.random import derive_seed, hash_integers
from formers.rl.spaces import Floats, Space

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


class Step(NamedTuple):
    """What one step of every copy came to; each field has the copies first."""

    observation: Floats
    """(copies, width): of an ended episode its final one."""
    reward: NDArray[np.float64]
    terminated: Bools
    """Whether the episode has ended, so that nothing follows."""
    truncated: Bools
    """Whether it was cut off by a time limit, behind which it would have gone on."""
    success: Bools
    """Of an ended episode: whether its task was done."""
    restarted: Bools
    """Whether the copy raised an error, so that it must be reset and its last step does not count."""


class Environments:
    """`copies` of an environment; the shapes of what they show and take."""

    name: str
    observation: Space
    action: Space
    copies: int

    def reset(self, which: Bools, seeds: Ints) -> Floats:
        """Begins an episode in the copies marked in which (copies,), each with its seed; the observations (copies, width) of all."""
        raise TypeError(f"{type(self).__name__} does not start: define reset(which, seeds).")

    def step(self, actions: NDArray[Any]) -> Step:
        """Takes one action (copies,) or (copies, n) in every copy."""
        raise TypeError(f"{type(self).__name__} takes no actions: define step(actions).")

    def allowed(self) -> Bools | None:
        """Which actions (copies, choices) can be taken now; None where all can."""
        return None

    def get_state(self) -> Arrays:
        """All that the next step depends on, as arrays with the copies first."""
        raise TypeError(f"{type(self).__name__} does not give its state: define get_state().")

    def set_state(self, state: Arrays) -> None:
        """Goes back to a state that `get_state` gave."""
        raise TypeError(f"{type(self).__name__} does not take a state: define set_state(state).")

    def draw(self) -> list[str]:
        """The first copy, as lines of text."""
        return []

    def picture(self) -> NDArray[np.uint8] | None:
        """The first copy as an image (height, width, 3), where the environment draws itself."""
        return None

    def close(self) -> None:
        """Lets go of what the environment holds."""


def episode_seeds(seed: int, copies: Ints, episodes: Ints) -> Ints:
    """A seed of 31 bits for each (seed, copy, episode): the same on every machine."""
    start = np.uint64(derive_seed(seed, "episodes"))
    bits = hash_integers((hash_integers(copies) ^ start).astype(np.int64) >> 1)
    return (hash_integers((bits ^ hash_integers(episodes)).astype(np.int64) >> 1) >> np.uint64(33)).astype(np.int64)


class Embedded(Environments):
    """An environment in NumPy: all copies are rows of a few arrays, which are its whole state."""

    arrays: tuple[str, ...]
    """The names of the arrays, each (copies, ...)."""

    def get_state(self) -> Arrays:
        return {name: getattr(self, name).copy() for name in self.arrays}

    def set_state(self, state: Arrays) -> None:
        for name in self.arrays:
            if name not in state or state[name].shape != getattr(self, name).shape:
                raise FormersError(f"the state of {self.name} has no {name} of shape {getattr(self, name).shape}: it is of another one.")
            getattr(self, name)[...] = state[name]
