"""V-MPO (Song et al., 2020), as the GTrXL paper trains its agents: the loss of a minibatch.

psi   = softmax(A / eta) over the half D of the steps with the largest advantages                                                     E164
L_pi  = -sum_D psi log pi(a)
L_eta = eta e_eta + eta log mean_D exp(A / eta)                                                  temperature
L_a   = mean alpha (e_a - sg KL(old || pi)) + sg(alpha) KL(old || pi)                            trust region

The loss is L_pi + L_eta + L_a + c_v L_V. eta and alpha are positive: they are exponentials of what is learnt, where the paper projects. The
old policy is that of the rollout. For Box actions the KL is that of the whole Gaussian, where the paper splits mean and covariance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Losses(NamedTuple):
    """The loss of a minibatch, and what is told of it."""

    loss: Tensor
    policy: Tensor
    temperature: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


def loss(
    log_probs: Tensor,
    kl: Tensor,
    advantages: Tensor,
    values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    log_eta: Tensor,
    log_alpha: Tensor,
    *,
    epsilon_eta: float,
    epsilon_alpha: float,
    value_weight: float,
    entropy_weight: float,
) -> Losses:
    """The loss of steps; log_eta and log_alpha are learned numbers, every other tensor is (batch, time)."""
    eta, alpha = log_eta.exp(), log_alpha.exp()
    best = advantages.flatten().topk((advantages.numel() + 1) // 2)
    scaled = best.values / eta
    psi = torch.softmax(scaled.detach(), dim=0)
    policy = -(psi * log_probs.flatten()[best.indices]).sum()  # E164
    count = torch.tensor(float(len(best.values)), dtype=scaled.dtype)
    temperature = eta * epsilon_eta + eta * (torch.logsumexp(scaled, dim=0) - count.log())
    region = (alpha * (epsilon_alpha - kl.detach()) + alpha.detach() * kl).mean()
    value = (values - returns).square().mean() / 2
    total = policy + temperature + region + value_weight * value - entropy_weight * entropy.mean()
    return Losses(total, policy.detach(), eta.detach(), value.detach(), entropy.mean().detach(), kl.mean().detach())
