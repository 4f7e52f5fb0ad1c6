"""The embedded environments for gymnasium: gymnasium.make("formers/TMaze-v0", length=20), once this has been imported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from formers.rl.environments.base import Embedded
from formers.rl.environments.naming import make
from formers.rl.spaces import Box, Discrete


class Single(gymnasium.Env[Any, Any]):
    """One copy of an embedded environment."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        inner = make(name, 1)
        assert isinstance(inner, Embedded)
        assert isinstance(inner.action, Discrete)
        assert isinstance(inner.observation, Box)
        self.inner, self.render_mode = inner, render_mode
        self.action_space = spaces.Discrete(inner.action.n)
        self.observation_space = spaces.Box(0.0, 1.0, inner.observation.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(2**31) if seed is None else seed
        return self.inner.reset(np.ones(1, np.bool_), np.array([drawn], np.int64))[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action."""
        step = self.inner.step(np.array([int(action)]))
        ended, cut = bool(step.terminated[0]), bool(step.truncated[0])
        return step.observation[0], float(step.reward[0]), ended, cut, {"is_success": bool(step.success[0])} if ended or cut else {}

    def render(self) -> Any:
        """The environment as lines of text."""
        return "\n".join(self.inner.draw()) if self.render_mode == "ansi" else None


def tmaze(length: int = 20, render_mode: str | None = None) -> Single:
    """formers/TMaze-v0."""
    return Single(f"tmaze:{length}", render_mode)


def corridor(length: int = 20, render_mode: str | None = None) -> Single:
    """formers/Corridor-v0."""
    return Single(f"corridor:{length}", render_mode)


def recall(symbols: int = 4, places: int = 3, render_mode: str | None = None) -> Single:
    """formers/Recall-v0."""
    return Single(f"recall:{symbols},{places}", render_mode)


_ENTRIES: dict[str, Any] = {"TMaze": tmaze, "Corridor": corridor, "Recall": recall}
for _name, _entry in _ENTRIES.items():
    if f"formers/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"formers/{_name}-v0", entry_point=_entry)
