"""Environments: those that are embedded, and those of gymnasium."""

from formers.rl.environments.base import Embedded, Environments, Step, episode_seeds
from formers.rl.environments.naming import EMBEDDED, make
from formers.rl.environments.recall import Recall
from formers.rl.environments.tmaze import Corridor, TMaze

__all__ = ["EMBEDDED", "Corridor", "Embedded", "Environments", "Recall", "Step", "TMaze", "episode_seeds", "make"]
