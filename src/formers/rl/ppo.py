"""Proximal policy optimisation (Schulman et al., 2017): the loss of a minibatch.

L = -mean min(rho A, clip(rho, 1 - e, 1 + e) A) + c_v mean (V - R)^2 / 2 - c_h mean H          rho = pi(a) / pi_old(a)                E163

What differs from the paper: advantages are normalised over the whole rollout, gradients are clipped by their norm, values are not clipped,
and a minibatch is a set of whole segments of some environments, so that the past that a step sees is computed once for all of its segment.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Losses(NamedTuple):
    """The loss of a minibatch, and what is told of it."""

    loss: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """How far the policy has moved: mean (rho - 1) - log rho, an estimate of KL(old || new) (Schulman, 2020)."""
    clipped: Tensor
    """The share of steps whose ratio lies outside 1 - e ... 1 + e."""


def loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    *,
    clip: float,
    value_weight: float,
    entropy_weight: float,
) -> Losses:
    """The loss of steps; every tensor is (batch, time)."""
    moved = log_probs - old_log_probs
    ratio = moved.exp()
    policy = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
    value = (values - returns).square().mean() / 2
    total = policy + value_weight * value - entropy_weight * entropy.mean()  # E163
    kl = ((ratio - 1) - moved).mean().detach()
    return Losses(total, policy.detach(), value.detach(), entropy.mean().detach(), kl, ((ratio - 1).abs() > clip).float().mean())


def normalised(advantages: Tensor, floor: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over all steps; one that is smaller than the floor counts as that.

    Where a task is solved advantages are noise, which must not be blown up: it would move the policy as much as the task did.
    """
    return (advantages - advantages.mean()) / advantages.std().clamp(min=floor)
