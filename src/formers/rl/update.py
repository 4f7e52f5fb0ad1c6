"""Training on a segment: minibatches are whole segments of some environments, computed from the memory they were collected with.

Gradients flow inside a segment and stop at the memory. The keys of the memory are computed again with the current weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from formers.core.random import derive_seed, generator
from formers.heads import PolicyValue
from formers.model import Model
from formers.rl import ppo, vmpo
from formers.rl.config import AgentSettings
from formers.rl.environments.base import Arrays
from formers.rl.popart import Scale, rescale
from formers.rl.returns import advantages
from formers.rl.rollout import Segment
from formers.training.optim import clip


@dataclass
class Learner:
    """What an update needs beside the model: the optimiser, V-MPO's multipliers and PopArt's scale."""

    model: Model
    settings: AgentSettings
    optimizer: torch.optim.Optimizer
    multipliers: nn.ParameterDict
    scale: Scale = field(default_factory=Scale)

    def __post_init__(self) -> None:
        self.dual = torch.optim.Adam(self.multipliers.parameters(), lr=self.settings.multiplier_rate)

    def dual_state(self) -> Arrays:
        """The moments of the multipliers' optimiser, by name."""
        names = {id(p): name for name, p in self.multipliers.items()}
        state = self.dual.state
        return {f"{names[id(p)]}.{what}": torch.as_tensor(v).numpy().reshape(1) for p in state for what, v in state[p].items()}

    def set_dual_state(self, saved: Arrays) -> None:
        """Goes back to what `dual_state` gave."""
        for name, parameter in self.multipliers.items():
            mine = {what.removeprefix(f"{name}."): a for what, a in saved.items() if what.startswith(f"{name}.")}
            if mine:
                self.dual.state[parameter] = {what: torch.from_numpy(a.copy()).reshape(()) for what, a in mine.items()}

    def learn(self, segment: Segment, update: int, rate: float) -> dict[str, float]:
        """One update: some epochs over a segment; figures are means over its minibatches."""
        settings, head = self.settings, self.model.spec.head
        assert isinstance(head, PolicyValue)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        values, after = (self.real(v) for v in (segment.values, segment.next_values))
        gains = advantages(segment.rewards, values, after, segment.terminated, segment.done, settings.gamma, settings.gae_lambda)
        returns = gains + values
        if settings.algorithm == "vmpo" and settings.popart:
            new = self.scale.seen(returns, settings.popart)
            rescale(self.model.head.worth, self.scale, new)  # type: ignore[arg-type]
            self.scale = new
            returns = self.scale.normal(returns)
        elif settings.normalise and settings.algorithm == "ppo":
            gains = ppo.normalised(gains, settings.advantage_floor)
        told: list[dict[str, float]] = []
        count = len(segment.actions)
        pieces = min(settings.minibatches, count)
        torch.manual_seed(derive_seed(settings.seed, "step", update))
        for epoch in range(settings.epochs):
            order = torch.randperm(count, generator=generator(settings.seed, "order", update, epoch))
            for rows in order.tensor_split(pieces):
                figures = self._step(segment, rows, gains[rows], returns[rows], head, not told)
                told.append(figures)
                if not math.isfinite(figures["loss"]) or self._far(figures["kl"]):
                    break
            else:
                continue
            break
        names = [name for name in told[0] if name != "ratio_error"]
        left = 1 - (returns - (segment.values if settings.algorithm == "ppo" else self.scale.normal(values))).var() / returns.var().clamp(
            min=1e-12
        )
        return {
            **{name: sum(each[name] for each in told) / len(told) for name in names},
            "ratio_error": told[0]["ratio_error"],
            "explained_variance": left.item(),
        }

    def _far(self, kl: float) -> bool:
        """Whether the policy has moved so far that the epochs of a rollout end; of PPO."""
        target = self.settings.target_kl
        return self.settings.algorithm == "ppo" and target is not None and kl > target

    def real(self, values: Tensor) -> Tensor:
        """What the value head says, on the scale of rewards."""
        return self.scale.real(values) if self.settings.algorithm == "vmpo" else values

    def _step(self, segment: Segment, rows: Tensor, gains: Tensor, returns: Tensor, head: PolicyValue, first: bool) -> dict[str, float]:
        """One step of the optimiser on the segments of some environments."""
        settings = self.settings
        out = self.model(segment.observations[rows], state=segment.state.select(rows), episodes=segment.episodes[rows])
        allowed = None if segment.allowed is None else segment.allowed[rows]
        policy = head.policy(out.logits, allowed)
        now, before = policy.log_prob(segment.actions[rows]), segment.log_probs[rows]
        weights = {"value_weight": settings.value_weight, "entropy_weight": settings.entropy}
        assert out.value is not None
        if settings.algorithm == "ppo":
            losses = ppo.loss(now, before, gains, out.value, returns, policy.entropy(), clip=settings.clip_ratio, **weights)
            loss, figures = losses.loss, losses._asdict()
        else:
            kl = head.policy(segment.logits[rows], allowed).kl(policy)
            found = vmpo.loss(
                now, kl, gains, out.value, returns, policy.entropy(), self.multipliers["eta"], self.multipliers["alpha"],
                epsilon_eta=settings.epsilon_eta, epsilon_alpha=settings.epsilon_alpha, **weights,
            )  # fmt: skip
            loss, figures = found.loss, found._asdict()
        self.optimizer.zero_grad(set_to_none=True)
        self.dual.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip(self.model.parameters(), settings.optimiser).item()
        if math.isfinite(norm) and bool(torch.isfinite(loss.detach())) and not self._far(float(figures["kl"])):
            self.optimizer.step()
            if settings.algorithm == "vmpo":
                self.dual.step()
        error = ((now - before).detach().exp() - 1).abs().max().item() if first else 0.0
        return {**{name: float(value.detach()) for name, value in figures.items()}, "norm": norm, "ratio_error": error}
