"""A corridor that ends in a junction, and a cue that says which arm is the right one (Bakker, 2001).

tmaze:L       the cue is shown at the first step alone, so that it must be remembered for L steps
corridor:L    the cue is shown at every step: the control that needs no memory

Observations are 4 floats: cue left, cue right, in the corridor, at the junction. Actions: 0 forward, 1 left, 2 right. At the junction left
and right end the episode, with a reward of 1 in the right arm and 0 in the other. Every other step that does not lead forward costs 0.01.
An episode is cut off after 3L + 10 steps. The best return is 1; without the cue the best mean return is 0.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.core.random import hash_integers
from formers.rl.environments.base import Bools, Embedded, Ints, Step
from formers.rl.spaces import Box, Discrete, Floats

COST = 0.01
FORWARD, LEFT, RIGHT = range(3)


class TMaze(Embedded):
    """tmaze:L."""

    title = "tmaze"
    shown = False
    """Whether the cue is shown at every step."""
    arrays = ("place", "cue", "time")
    action = Discrete(3)
    observation = Box((4,), (0.0,) * 4, (1.0,) * 4)

    def __init__(self, copies: int, length: int) -> None:
        self.name, self.copies, self.length = f"{self.title}:{length}", copies, length
        self.place, self.cue, self.time = (np.zeros(copies, np.int64) for _ in range(3))

    def reset(self, which: Bools, seeds: Ints) -> Floats:
        self.place[which], self.time[which] = 0, 0
        self.cue[which] = (hash_integers(seeds[which]) >> np.uint64(7)).astype(np.int64) & 1
        return self.observe()

    def observe(self) -> Floats:
        """(copies, 4) floats."""
        seen = np.zeros((self.copies, 4), np.float32)
        rows = np.flatnonzero((self.time == 0) | self.shown)
        seen[rows, self.cue[rows]] = 1.0
        seen[np.arange(self.copies), 2 + (self.place == self.length)] = 1.0
        return seen

    def step(self, actions: NDArray[Any]) -> Step:
        junction = self.place == self.length
        ended = junction & (actions != FORWARD)
        right = ended & (actions == LEFT + self.cue)
        forward = ~junction & (actions == FORWARD)
        self.place += forward
        self.time += 1
        reward = np.where(ended, right.astype(np.float64), np.where(forward, 0.0, -COST))
        cut = ~ended & (self.time >= 3 * self.length + 10)
        return Step(self.observe(), reward, ended, cut, right, np.zeros(self.copies, np.bool_))

    def draw(self) -> list[str]:
        place, arm = int(self.place[0]), int(self.cue[0])
        cue = "<>"[arm] if self.time[0] == 0 or self.shown else " "
        here = "".join("@" if i == place else "." for i in range(self.length + 1))
        side = " " * (self.length + 1)
        return [f"{side}{'*' if arm == 0 else 'o'}", f"{here}|  cue {cue}", f"{side}{'*' if arm == 1 else 'o'}"]


class Corridor(TMaze):
    """corridor:L."""

    title = "corridor"
    shown = True
