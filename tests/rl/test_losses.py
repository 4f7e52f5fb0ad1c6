"""Returns, PPO, V-MPO and PopArt against loops that are written down naively."""

from __future__ import annotations

import math

import torch
from torch import nn

from formers.rl import ppo, vmpo
from formers.rl.config import AgentSettings
from formers.rl.popart import Scale, rescale
from formers.rl.returns import advantages
from helpers import close, sweep


def naive_advantages(r, v, after, terminated, done, gamma, trace):
    """A_t as the sum over all later deltas of the episode."""
    found = torch.zeros_like(r)
    for row in range(len(r)):
        for t in range(r.shape[1]):
            weight = 1.0
            for k in range(t, r.shape[1]):
                nothing = 0.0 if terminated[row, k] else 1.0
                found[row, t] += weight * (r[row, k] + gamma * nothing * after[row, k] - v[row, k])
                if done[row, k]:
                    break
                weight *= gamma * trace
    return found


@sweep("seed", range(5))
def test_advantages_are_the_sums_of_a_naive_loop(seed):
    g = torch.Generator().manual_seed(seed)
    r, v, after = (torch.randn(3, 9, generator=g, dtype=torch.float64) for _ in range(3))
    done = torch.rand(3, 9, generator=g) < 0.3
    terminated = done & (torch.rand(3, 9, generator=g) < 0.5)
    close(advantages(r, v, after, terminated, done, 0.9, 0.8), naive_advantages(r, v, after, terminated, done, 0.9, 0.8))


def test_a_time_limit_is_no_end():
    """A reward of 1 at every step for ever is worth 1 / (1 - gamma), wherever the episode is cut off."""
    worth = torch.full((1, 4), 1 / (1 - 0.9), dtype=torch.float64)
    cut = torch.tensor([[False, True, False, True]])
    close(advantages(torch.ones_like(worth), worth, worth, torch.zeros_like(cut), cut, 0.9, 0.95), torch.zeros_like(worth))


def test_ppo_step_by_step():
    new, old, a, v, r, h = torch.randn(6, 2, 5, dtype=torch.float64).unbind(0)
    new = old + 0.5 * new
    found = ppo.loss(new, old, a, v, r, h, clip=0.2, value_weight=0.5, entropy_weight=0.01)
    total, outside = 0.0, 0
    for i in range(2):
        for t in range(5):
            rho = math.exp(new[i, t] - old[i, t])
            total -= min(rho * a[i, t], max(min(rho, 1.2), 0.8) * a[i, t]) / 10
            total += 0.5 * (v[i, t] - r[i, t]) ** 2 / 20 - 0.01 * h[i, t] / 10
            outside += abs(rho - 1) > 0.2
    close(found.loss, torch.as_tensor(total, dtype=torch.float64))
    assert math.isclose(found.clipped.item(), outside / 10, rel_tol=1e-6)
    even = ppo.normalised(a)
    assert abs(even.mean().item()) < 1e-12
    assert math.isclose(even.std().item(), 1.0, rel_tol=1e-6)


def test_vmpo_step_by_step():
    new, kl, a, v, r, h = torch.randn(6, 2, 4, dtype=torch.float64).unbind(0)
    kl, eta, alpha = kl.abs(), 0.7, 1.3
    logs = [torch.tensor(math.log(x), dtype=torch.float64, requires_grad=True) for x in (eta, alpha)]
    found = vmpo.loss(
        new, kl, a, v, r, h, *logs, epsilon_eta=0.1, epsilon_alpha=0.01, value_weight=0.5, entropy_weight=0.0
    )  # fmt: skip
    best = sorted(zip(a.flatten().tolist(), new.flatten().tolist(), strict=True), reverse=True)[:4]
    whole = sum(math.exp(x / eta) for x, _ in best)
    policy = -sum(math.exp(x / eta) / whole * p for x, p in best)
    temperature = eta * 0.1 + eta * math.log(whole / 4)
    region = sum(alpha * (0.01 - k) + alpha * k for k in kl.flatten().tolist()) / 8
    value = 0.5 * ((v - r) ** 2).mean().item() / 2
    assert math.isclose(found.loss.item(), policy + temperature + region + value, rel_tol=1e-9)
    found.loss.backward()
    assert math.isclose(logs[1].grad.item(), sum(alpha * (0.01 - k) for k in kl.flatten().tolist()) / 8, rel_tol=1e-9)


def test_popart_keeps_what_values_are():
    out, h = nn.Linear(4, 1).double(), torch.randn(7, 4, dtype=torch.float64)
    old = Scale().seen(torch.randn(50) * 3 + 5, 0.5)
    before = old.real(out(h))
    new = old.seen(torch.randn(50) * 9 - 2, 0.3)
    rescale(out, old, new)
    close(new.real(out(h)), before)
    close(new.real(new.normal(before)), before)
    assert new.mean != old.mean


def test_the_epsilon_of_adam_is_that_of_the_algorithm_unless_given():
    chosen = [AgentSettings(), AgentSettings(algorithm="vmpo"), AgentSettings(epsilon=1e-3)]
    assert [settings.adam_epsilon for settings in chosen] == [1e-4, 1e-5, 1e-3]
