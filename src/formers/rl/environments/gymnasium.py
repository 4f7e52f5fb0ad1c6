"""Environments of gymnasium, one object a copy, each with its own time: no copy restarts by itself, and one that fails fails alone.

gymnasium's vector environments insert a phantom transition behind an episode's end unless their autoreset is disabled, and lose the step of
all copies where one raises. Here every copy is stepped by itself. Nothing is pickled: a copy's state is the seed of its episode and the
actions since, which are taken again where a run goes on; the observations must then be the same.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError
from formers.rl.environments.base import Arrays, Bools, Environments, Ints, Step
from formers.rl.spaces import Box, Discrete, Floats, MultiDiscrete, Product, Space, flatten, from_gymnasium, width

log = logging.getLogger(__name__)

MINIGRID = (11, 6, 4)
"""Objects, colours and states of a cell of MiniGrid."""
FAILURES = 100
"""So many errors of an environment end a run."""


class Gymnasium(Environments):
    """`copies` of a registered environment. options: `actions`, how many of the first ones are used; the others are gymnasium.make's."""

    def __init__(self, name: str, identity: str, copies: int, options: Mapping[str, Any], drawn: bool = False) -> None:
        self.name, self.copies = name, copies
        rest = dict(options)
        self.first_actions = rest.pop("actions", None)
        self.identity, self.options, self.drawn = identity, rest, drawn
        self.envs: list[Any] = [_make(identity, rest, drawn) for _ in range(copies)]
        shown = self.envs[0].observation_space
        self.cells = "image" in getattr(shown, "spaces", {}) and identity.startswith("MiniGrid")
        self.observation = _minigrid(shown) if self.cells else from_gymnasium(shown, f"the observation space of {name},")
        self.action = self._actions(from_gymnasium(self.envs[0].action_space, f"the action space of {name},"))
        self.seen: Floats = np.zeros((copies, width(self.observation)), np.float32)
        self.seeds: Ints = np.zeros(copies, np.int64)
        self.taken: list[list[NDArray[Any]]] = [[] for _ in range(copies)]
        self.masks: list[Any] = [None] * copies
        self.failures = 0

    def _actions(self, space: Space) -> Space:
        if isinstance(space, Product):
            raise FormersError(f"the action space of {self.name} is a Dict or Tuple: use Discrete, MultiDiscrete or Box.")
        n = self.first_actions
        if n is None:
            return space
        if not isinstance(space, Discrete) or not isinstance(n, int) or not 1 <= n <= space.n:
            raise FormersError(f"actions={n} cannot be had of {self.name}, whose actions are {space}: give 1 ... n of a Discrete space.")
        return Discrete(n, space.start)

    def reset(self, which: Bools, seeds: Ints) -> Floats:
        for i in map(int, np.flatnonzero(which)):
            self.seeds[i], self.taken[i] = seeds[i], []
            try:
                shown, info = self.envs[i].reset(seed=int(seeds[i]))
            except Exception as error:
                self._failed(i, error, "reset")
                try:
                    shown, info = self.envs[i].reset(seed=int(seeds[i]))
                except Exception as again:
                    raise FormersError(
                        f"copy {i} of {self.name} raised {type(again).__name__} at reset, and again after it was made anew ({again}): "
                        "fix the environment; what was saved before is kept."
                    ) from again
            self._see(i, shown, info)
        return self.seen.copy()

    def step(self, actions: NDArray[Any]) -> Step:
        reward = np.zeros(self.copies)
        ended, cut, done, restarted = (np.zeros(self.copies, np.bool_) for _ in range(4))
        for i in range(self.copies):
            try:
                shown, gain, ended[i], cut[i], info = self.envs[i].step(self._given(actions[i]))
            except FormersError:
                raise
            except Exception as error:
                self._failed(i, error, f"step {len(self.taken[i]) + 1} of an episode")
                restarted[i] = True
                continue
            self.taken[i].append(np.array(actions[i]))
            reward[i] = float(gain)
            self._see(i, shown, info)
            said = info.get("is_success", info.get("success"))
            done[i] = bool(said) if said is not None else bool(ended[i]) and reward[i] > 0
        return Step(self.seen.copy(), reward, ended, cut & ~ended, done & (ended | cut), restarted)

    def allowed(self) -> Bools | None:
        if self.masks[0] is None or not isinstance(self.action, Discrete):
            return None
        rows = [np.ones(self.action.n, np.bool_) if mask is None else np.asarray(mask, np.bool_)[: self.action.n] for mask in self.masks]
        return np.stack(rows)

    def get_state(self) -> Arrays:
        longest = max((len(taken) for taken in self.taken), default=0)
        one = np.zeros(()) if isinstance(self.action, Discrete) else np.zeros(_shape(self.action))
        taken = np.zeros((self.copies, longest, *one.shape))
        for i, actions in enumerate(self.taken):
            for t, action in enumerate(actions):
                taken[i, t] = action
        counts = np.array([len(actions) for actions in self.taken], np.int64)
        return {"seeds": self.seeds.copy(), "taken": taken, "counts": counts, "seen": self.seen.copy()}

    def set_state(self, state: Arrays) -> None:
        self.reset(np.ones(self.copies, np.bool_), state["seeds"])
        for i, count in enumerate(state["counts"]):
            for action in state["taken"][i, : int(count)]:
                shown, _, _, _, info = self.envs[i].step(self._given(action))
                self.taken[i].append(np.array(action))
                self._see(i, shown, info)
        if not np.array_equal(self.seen, state["seen"]):
            raise FormersError(
                f"{self.name} does not show again what it has shown for the same seeds and actions: its episodes cannot be resumed; "
                "make it depend on reset(seed) alone, or train anew."
            )

    def picture(self) -> NDArray[np.uint8] | None:
        picture = self.envs[0].render() if self.envs[0].render_mode == "rgb_array" else None
        return None if picture is None else np.asarray(picture, np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _given(self, action: Any) -> Any:
        if isinstance(self.action, Discrete):
            return int(action) + self.action.start
        if isinstance(self.action, MultiDiscrete):
            return np.asarray(action, np.int64).reshape(self.action.shape)
        assert isinstance(self.action, Box)
        low, high = (np.array(side).reshape(self.action.shape) for side in (self.action.low, self.action.high))
        return np.clip(np.asarray(action).reshape(self.action.shape), low, high).astype(np.float32)

    def _see(self, i: int, shown: Any, info: Mapping[str, Any]) -> None:
        try:
            flatten(self.observation, shown, self.seen[i])
        except FormersError as error:
            raise FormersError(f"copy {i} of {self.name}, after {len(self.taken[i])} steps of an episode: {error}") from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise FormersError(
                f"copy {i} of {self.name}, after {len(self.taken[i])} steps of an episode, shows what is not in its observation space "
                f"({error!r}): the environment must keep to its spaces."
            ) from error
        self.masks[i] = info.get("action_mask")

    def _failed(self, i: int, error: Exception, when: str) -> None:
        """Replaces a copy that raised; too many errors end the run."""
        self.failures += 1
        log.warning("copy %d of %s raised %s at %s and is restarted: %s", i, self.name, type(error).__name__, when, error)
        if self.failures > FAILURES:
            raise FormersError(f"{self.name} raised more than {FAILURES} errors, the last of them {error!r}: fix the environment.")
        self.envs[i] = _make(self.identity, self.options, self.drawn)


def _shape(space: Space) -> tuple[int, ...]:
    return space.shape if isinstance(space, MultiDiscrete | Box) else ()


def _minigrid(shown: Any) -> Space:
    """MiniGrid's cells as one-hot objects, colours and states, and the direction; the mission, a text, is left out."""
    shape = tuple(int(n) for n in shown.spaces["image"].shape)
    cells = MultiDiscrete(MINIGRID * (shape[0] * shape[1]), shape)
    return Product((("image", cells), ("direction", from_gymnasium(shown.spaces["direction"], "the direction,"))))


def _make(identity: str, options: Mapping[str, Any], drawn: bool = False) -> Any:
    """One environment of an id, as gymnasium.make gives it; with `drawn` one that draws itself, where it can."""
    try:
        import gymnasium
    except ImportError:
        raise FormersError(f"{identity} is an environment of gymnasium, which is not installed: run `pip install gymnasium`.") from None
    if identity.startswith("MiniGrid"):
        try:
            importlib.import_module("minigrid")
        except ImportError:
            raise FormersError(f"{identity} is an environment of minigrid, which is not installed: run `pip install minigrid`.") from None
    package, _, _ = identity.partition(":")
    if package != identity:
        try:
            importlib.import_module(package)
        except ImportError:
            raise FormersError(f"the package {package!r} of {identity} is not installed: install it first.") from None
    try:
        more: dict[str, Any] = {"render_mode": "rgb_array"} if drawn else {}
        return gymnasium.make(identity, disable_env_checker=True, **more, **options)
    except gymnasium.error.UnregisteredEnv:
        close = get_close_matches(identity.rpartition(":")[2], [*gymnasium.registry, *EMBEDDED_WORDS], n=3, cutoff=0.6)
        meant = f"did you mean {' or '.join(close)}? Else " if close else ""
        raise FormersError(f"there is no environment {identity!r}: {meant}install its package and write package:Name-v0.") from None
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        if drawn:  # some cannot
            return _make(identity, options)
        why = str(error).splitlines()[0].rstrip(".")
        raise FormersError(f"{identity} cannot be made with {dict(options)} ({why}): change the options behind its name.") from None


EMBEDDED_WORDS = ("tmaze:20", "corridor:20", "recall:4,3")
