"""An agent on its way: rollouts and updates in turn, how far it has come, and what a checkpoint of it holds.

Everything random in an update is a function of (seed, update): actions, minibatches, dropout. Every episode is seeded by (seed, copy,
episode). A checkpoint holds weights, optimiser, memory, and the environments as arrays, so that a run resumes bit for bit.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save as arrays_to_bytes
from torch import nn

from formers.core import State
from formers.model import Model
from formers.rl.config import AgentSettings
from formers.rl.environments import Environments
from formers.rl.environments.base import Arrays
from formers.rl.popart import Scale
from formers.rl.rollout import WINDOW, Collector
from formers.rl.update import Learner
from formers.training.checkpoint import restore
from formers.training.distributed import ALONE, World
from formers.training.divergence import Diverged
from formers.training.loss_scale import LossScale
from formers.training.optim import optimizer

NAMES = {
    "policy": "policy_loss", "value": "value_loss", "clipped": "clip_fraction", "norm": "gradient_norm", "temperature": "vmpo_temperature",
}  # fmt: skip
"""What figures of an update are called in the metrics, as elsewhere."""
AGENT = "agent.safetensors"
"""Where a checkpoint keeps the environments, episodes and multipliers."""


@dataclass
class AgentLoop:
    """A training of an agent: what a checkpoint needs of it has the names that all trainings have."""

    model: Model
    environments: Environments
    settings: AgentSettings
    world: World = ALONE
    step: int = 0
    """Steps of the environment, over all copies."""
    tokens: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    smooth: float | None = None
    bad: int = 0
    best_loss: float | None = None
    """The negative of the best mean return of a full window of episodes."""
    best_step: int | None = None
    sample: dict[str, float | str] | None = None
    best_sample: dict[str, float | str] | None = None
    updates: int = 0
    states: list[State | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.length = self.model.spec.length
        self.cpu = time.process_time()
        chosen = self.settings
        self.optimizer = optimizer(self.model, chosen.optimiser)
        for group in self.optimizer.param_groups:
            group["eps"] = chosen.adam_epsilon
        self.scaler = LossScale(enabled=False)
        self.rows = [slice(0, chosen.environments)]
        self.collector = Collector(self.model, self.environments, chosen.seed)
        multipliers = nn.ParameterDict({name: torch.zeros(()) for name in ("eta", "alpha")})
        self.learner = Learner(self.model, chosen, self.optimizer, multipliers)

    @property
    def progress(self) -> float:
        """The share of the budget that has been spent."""
        if self.settings.minutes is not None:
            return min(self.seconds / (60 * self.settings.minutes), 1.0)
        assert self.settings.budget is not None
        return min(self.step / self.settings.budget, 1.0)

    def advance(self) -> dict[str, float]:
        """One rollout and one update; what it came to, by the names that people know."""
        start = time.perf_counter()
        before = self.collector.ended
        segment = self.collector.collect(self.length, self.updates)
        rolled = time.perf_counter()
        rate = self.settings.rate(self.progress)
        told = self.learner.learn(segment, self.updates, rate)
        self.updates += 1
        self.step += segment.rewards.numel()
        self.tokens = self.step
        self.states = [self.collector.state]
        spent = time.perf_counter() - start
        self.busy += spent
        self.seconds += spent
        if not math.isfinite(told["loss"]):
            raise Diverged(
                f"the loss is {told['loss']:g} at step {self.step:,}: train with less than learning_rate={self.settings.learning_rate:g}; "
                "the last checkpoint is good."
            )
        episodes = {"episodes": float(self.collector.ended), "new_episodes": float(self.collector.ended - before)}
        if self.collector.restarts:
            episodes["restarts"] = float(self.collector.restarts)
        told = {NAMES.get(name, name): value for name, value in told.items()}
        speed = {"learning_rate": rate, "rollout_seconds": rolled - start, "update_seconds": spent - (rolled - start)}
        speed["cpu_seconds"] = time.process_time() - self.cpu  # of this process, since it began or went on
        return {**self.window(), **episodes, **told, **speed}

    def window(self) -> dict[str, float]:
        """Means over the newest episodes; nothing where none has ended."""
        ended = self.collector.finished
        if not ended:
            return {}
        return {
            "return": fmean(e.total for e in ended),
            "success": fmean(e.success for e in ended),
            "length": fmean(e.length for e in ended),
        }

    def note_best(self) -> bool:
        """Whether the newest full window of episodes is the best so far, which is then noted."""
        if len(self.collector.finished) < WINDOW:
            return False
        loss = -self.window()["return"]
        if self.best_loss is not None and loss >= self.best_loss:
            return False
        self.best_loss, self.best_step = loss, self.step
        return True

    def further(self) -> dict[str, bytes]:
        """The environments, the episodes and V-MPO's numbers, as a file of a checkpoint."""
        learner = self.learner
        numbers: dict[str, Any] = {"updates": self.updates, "scale": list(learner.scale)}
        arrays: Arrays = {name: np.ascontiguousarray(value) for name, value in self.collector.get_state().items()}
        arrays |= {f"multiplier.{name}": value.detach().numpy().reshape(1) for name, value in learner.multipliers.items()}
        for name, moments in learner.dual_state().items():
            arrays[f"dual.{name}"] = moments
        return {AGENT: arrays_to_bytes(arrays, metadata={"numbers": json.dumps(numbers)})}

    def restore(self, folder: Path) -> int:
        """Goes back to a checkpoint; the length that the metrics had then."""
        from safetensors import safe_open

        bytes_of_metrics = restore(folder, self)
        arrays = load_arrays(folder / AGENT)
        with safe_open(folder / AGENT, framework="np") as file:
            numbers = json.loads(file.metadata()["numbers"])
        self.updates, self.learner.scale = int(numbers["updates"]), Scale(*numbers["scale"])
        with torch.no_grad():
            for name, value in self.learner.multipliers.items():
                value.copy_(torch.from_numpy(arrays[f"multiplier.{name}"]).reshape(()))
        self.learner.set_dual_state({name.removeprefix("dual."): a for name, a in arrays.items() if name.startswith("dual.")})
        self.collector.set_state({name: a for name, a in arrays.items() if name.startswith(("agent.", "env."))})
        if self.states and self.states[0] is not None:
            self.collector.state = self.states[0]
        return bytes_of_metrics
