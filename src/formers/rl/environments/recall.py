"""Symbols are shown one after the other, and asked for afterwards in a random order.

recall:N,K    K steps show one of N symbols each; then K steps name a place of the row, each once, and the action is the symbol that stood
              there. Every right answer is worth 1/K.

Observations are N + K floats: the symbol that is shown, or the place that is asked for. Actions are the N symbols; those of the first K
steps have no effect. The best return is 1; without memory the best mean return is 1/N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.rl.environments.base import Bools, Embedded, Ints, Step
from formers.rl.spaces import Box, Discrete, Floats


class Recall(Embedded):
    """recall:N,K."""

    arrays = ("symbols", "order", "time", "right")

    def __init__(self, copies: int, symbols: int, places: int) -> None:
        self.name, self.copies, self.kinds, self.places = f"recall:{symbols},{places}", copies, symbols, places
        self.symbols, self.order = (np.zeros((copies, places), np.int64) for _ in range(2))
        self.time, self.right = (np.zeros(copies, np.int64) for _ in range(2))
        self.action = Discrete(symbols)
        self.observation = Box((symbols + places,), (0.0,) * (symbols + places), (1.0,) * (symbols + places))

    def reset(self, which: Bools, seeds: Ints) -> Floats:
        self.time[which], self.right[which] = 0, 0
        for row in np.flatnonzero(which):
            random = np.random.default_rng(int(seeds[row]))
            self.symbols[row], self.order[row] = random.integers(self.kinds, size=self.places), random.permutation(self.places)
        return self.observe()

    def observe(self) -> Floats:
        """(copies, N + K) floats."""
        seen = np.zeros((self.copies, self.kinds + self.places), np.float32)
        rows, time = np.arange(self.copies), np.minimum(self.time, 2 * self.places - 1)
        showing = time < self.places
        at = time % self.places
        seen[rows, np.where(showing, self.symbols[rows, at], self.kinds + self.order[rows, at])] = 1.0
        return seen

    def step(self, actions: NDArray[Any]) -> Step:
        rows, asked = np.arange(self.copies), self.time - self.places
        place = self.order[rows, np.maximum(asked, 0) % self.places]
        right = (asked >= 0) & (actions == self.symbols[rows, place])
        self.right += right
        self.time += 1
        ended = self.time >= 2 * self.places
        none = np.zeros(self.copies, np.bool_)
        return Step(self.observe(), right / self.places, ended, none, ended & (self.right == self.places), none)

    def draw(self) -> list[str]:
        time = min(int(self.time[0]), 2 * self.places - 1)
        shown = " ".join(str(s) for s in self.symbols[0])
        if time < self.places:
            return [shown, f"shows {self.symbols[0, time]} at place {time}"]
        return [shown, f"asks for place {self.order[0, time - self.places]}"]
