"""A policy and a value at every position, for agents.

logits_t = W h_t + b           one score per choice; for continuous actions the mean and the log scale of a Gaussian   E119
value_t  = w h_t + c

Discrete actions have one group of choices; MultiDiscrete actions have several groups, concatenated in the logits. Continuous actions (Box)
are drawn from a Gaussian whose scale is a learned constant. If the bounds are finite, the actions are scaled so that -1 and 1 are the
bounds; they are clipped before they are sent to the environment. The loss of reinforcement learning is computed in rl/ppo.py; with
targets, the actions of an expert, the loss is their cross-entropy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from formers.core import FormersError, Sizes
from formers.core.initial import draw
from formers.heads.base import EmbeddingTables, Head, HeadModule, cross_entropy, mask_targets, token_cross_entropy

SHUT = -1e9
"""The logit of an action that cannot be taken."""


class PolicyValue(Head):
    """Scores of actions, `out.logits`, and the value of the state, `out.value`."""

    choices: tuple[PositiveInt, ...] = ()
    """The number of choices of each discrete action; one number for Discrete."""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """The bounds of each continuous action of a Box, instead of choices; None if unbounded."""
    gain: PositiveFloat = 0.01
    """The gain of the initial output weights: with a small one, all actions are initially almost equally likely."""
    scale: PositiveFloat = 1.0
    """The initial scale of the Gaussian."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.choices) == bool(self.low) or len(self.low) != len(self.high):
            raise FormersError(
                f"PolicyValue has choices={list(self.choices)}, low={list(self.low)} and high={list(self.high)}: "
                "give the choices of discrete actions, or as many lower as upper bounds of continuous actions."
            )
        return self

    @property
    def width(self) -> int:
        """The number of logits."""
        return sum(self.choices) if self.choices else 2 * len(self.low)

    def target_shape(self, batch: int, length: int) -> tuple[int, ...]:
        return (batch, length) if len(self.choices) == 1 else (batch, length, len(self.choices) or len(self.low))

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        return PolicyValueHead(sizes.dim, self)

    def policy(self, logits: Tensor, allowed: Tensor | None = None) -> Policy:
        """The action distribution for logits (..., width); allowed (..., width) bool marks the choices that can be taken."""
        if self.low:
            mean, log_scale = logits.chunk(2, dim=-1)
            return Policy((), mean, log_scale)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, SHUT)
        groups = tuple(group.log_softmax(dim=-1) for group in torch.split(logits, list(self.choices), dim=-1))
        return Policy(groups, None, None)

    def bounded(self, actions: Tensor) -> Tensor:
        """Sampled continuous actions (..., n), scaled and clipped to the bounds of the environment."""
        low = actions.new_tensor([-math.inf if x is None else x for x in self.low])
        high = actions.new_tensor([math.inf if x is None else x for x in self.high])
        finite = low.isfinite() & high.isfinite()
        half, middle = torch.where(finite, (high - low) / 2, 1.0), torch.where(finite, (high + low) / 2, 0.0)
        return torch.minimum(torch.maximum(middle + half * actions, low), high)


class Policy(NamedTuple):
    """A distribution of actions: the log-probabilities of each group of choices, or a Gaussian."""

    groups: tuple[Tensor, ...]
    mean: Tensor | None
    log_scale: Tensor | None

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Actions (...), or (..., n) for several choices or continuous actions."""
        if self.mean is not None and self.log_scale is not None:
            noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
            return self.mean + self.log_scale.exp() * noise
        drawn = []
        for group in self.groups:  # argmax of logits with Gumbel noise samples from their softmax
            noise = torch.rand(group.shape, generator=generator, dtype=group.dtype, device=group.device)
            drawn.append((group - (-noise.clamp(min=1e-20).log()).log()).argmax(dim=-1))
        return drawn[0] if len(drawn) == 1 else torch.stack(drawn, dim=-1)

    def mode(self) -> Tensor:
        """The most probable actions."""
        if self.mean is not None:
            return self.mean
        best = [group.argmax(dim=-1) for group in self.groups]
        return best[0] if len(best) == 1 else torch.stack(best, dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """log pi(a) (...) of actions in the format of `sample`."""
        if self.mean is not None and self.log_scale is not None:
            off = (actions - self.mean) / self.log_scale.exp()
            return (-0.5 * off.square() - self.log_scale - 0.5 * math.log(2 * math.pi)).sum(dim=-1)
        each = actions[..., None] if len(self.groups) == 1 else actions
        taken = [group.gather(-1, each[..., i : i + 1])[..., 0] for i, group in enumerate(self.groups)]
        return taken[0] if len(taken) == 1 else torch.stack(taken).sum(dim=0)

    def entropy(self) -> Tensor:
        """H (...), the sum over all choices or continuous actions."""
        if self.log_scale is not None:
            return (self.log_scale + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)
        return torch.stack([-(group.exp() * group).sum(dim=-1) for group in self.groups]).sum(dim=0)

    def kl(self, other: Policy) -> Tensor:
        """KL(self || other) (...)."""
        if self.mean is not None and self.log_scale is not None and other.mean is not None and other.log_scale is not None:
            ratio = (self.log_scale - other.log_scale).exp()
            off = (self.mean - other.mean) / other.log_scale.exp()
            return (0.5 * (ratio.square() + off.square() - 1) - ratio.log()).sum(dim=-1)
        return torch.stack([(a.exp() * (a - b)).sum(dim=-1) for a, b in zip(self.groups, other.groups, strict=True)]).sum(dim=0)


class PolicyValueHead(HeadModule):
    """Two linear maps; the log scale of a Gaussian is a separate vector."""

    def __init__(self, dim: int, part: PolicyValue) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(dim, sum(part.choices) or len(part.low))
        self.worth = nn.Linear(dim, 1)
        draw(self.out.weight, gain=part.gain)
        draw(self.worth.weight)
        nn.init.zeros_(self.out.bias)
        nn.init.zeros_(self.worth.bias)
        self.log_scale = nn.Parameter(torch.full((len(part.low),), math.log(part.scale))) if part.low else None

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (batch, length, width); with targets for discrete actions, their cross-entropy."""
        logits = self._logits(hidden)
        if targets is None:
            return logits, {}
        return logits, {"cross_entropy": self._mean(logits, mask_targets(targets, mask))}

    def value(self, hidden: Tensor) -> Tensor:
        return self.worth(hidden)[..., 0]

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        self._check_discrete()
        each = targets[..., None] if len(self.part.choices) == 1 else targets
        groups = torch.split(self._logits(hidden), list(self.part.choices), dim=-1)
        return torch.stack([token_cross_entropy(group, each[..., i]) for i, group in enumerate(groups)]).sum(dim=0)

    def _logits(self, hidden: Tensor) -> Tensor:
        scores = self.out(hidden)  # E119
        return scores if self.log_scale is None else torch.cat([scores, self.log_scale.to(scores.dtype).expand_as(scores)], dim=-1)

    def _mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        self._check_discrete()
        if len(self.part.choices) == 1:
            return cross_entropy(logits, targets)
        groups = torch.split(logits, list(self.part.choices), dim=-1)
        return torch.stack([cross_entropy(group, targets[..., i]) for i, group in enumerate(groups)]).mean()

    def _check_discrete(self) -> None:
        if self.part.low:
            raise FormersError("a policy for continuous actions (Box) has no cross-entropy: omit targets, and train it with formers.rl.")
