"""The arithmetic of halting against loops over single numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from formers.depth.halting import Act, add_weighted, begin, mean_cost
from helpers import close, sweep


def graves(h: list[float], epsilon: float) -> tuple[list[float], int, float]:
    """Weights, N and R of one thing whose halting probabilities are h; the last is that of step M."""
    total, weights = 0.0, []
    for n, p in enumerate(h):
        if total + p >= 1 - epsilon or n == len(h) - 1:
            return [*weights, 1 - total] + [0.0] * (len(h) - n - 1), n + 1, 1 - total
        total += p
        weights.append(p)
    raise AssertionError


def t2t(h: list[float], epsilon: float) -> tuple[list[float], int, float]:
    """The same as tensor2tensor's loop does it: halting_probability, remainders, n_updates of one thing."""
    probability, remainder, updates, weights = 0.0, 0.0, 0, []
    for p in h:
        running = float(probability < 1.0)
        halted = float(probability + p * running > 1 - epsilon) * running
        running = float(probability + p * running <= 1 - epsilon) * running
        probability += p * running
        remainder += halted * (1 - probability)
        probability += halted * remainder
        updates += int(running + halted)
        weights.append(p * running + halted * remainder)
    return weights, updates, remainder


LOOPS: dict[Act, Any] = {"graves": graves, "t2t": t2t}


def spend(h: Tensor, epsilon: float, act: Act) -> tuple[Tensor, Any]:
    """All weights (..., steps) of h (..., steps), and what is spent in the end."""
    spent, weights = begin(torch.ones(h.shape[:-1], dtype=torch.bool), h.dtype), []
    for n in range(h.shape[-1]):
        p, spent = spent.step(h[..., n], epsilon, last=n == h.shape[-1] - 1, act=act)
        weights.append(p)
    return torch.stack(weights, dim=-1), spent


@sweep("act", ["graves", "t2t"])
@sweep("epsilon", [0.01, 0.3])
def test_equals_the_loop(act: Act, epsilon: float) -> None:
    h = torch.rand(7, 30, 6, dtype=torch.float64) * torch.linspace(0.1, 1, 30, dtype=torch.float64)[:, None]
    weights, spent = spend(h, epsilon, act)
    for i in range(7):
        for j in range(30):
            expected, steps, remainder = LOOPS[act](h[i, j].tolist(), epsilon)
            close(weights[i, j], torch.tensor(expected, dtype=torch.float64))
            assert int(spent.steps[i, j]) == steps
            close(spent.remainder[i, j], torch.tensor(remainder, dtype=torch.float64))


@sweep("steps", [1, 2, 5])
def test_the_weights_sum_to_one_however_the_steps_end(steps: int) -> None:
    h = torch.rand(1000, steps) * 0.5
    weights, _ = spend(h, 0.01, "graves")
    assert (weights.sum(dim=-1) - 1).abs().max() <= 2.5e-7  # rounding of float32, of which each has `steps`
    assert (weights >= 0).all()


def test_the_threshold_itself_is_enough() -> None:
    h = torch.tensor([[0.5, 0.25, 0.9], [0.5, 0.2, 0.9]], dtype=torch.float64)
    _, spent = spend(h, 0.25, "graves")
    assert spent.steps.tolist() == [2, 3]
    _, spent = spend(h, 0.25, "t2t")
    assert spent.steps.tolist() == [3, 3]


def test_the_gradient_of_the_cost_is_minus_one_before_the_last_step() -> None:
    h = torch.tensor([0.3, 0.2, 0.1, 0.9, 0.5], dtype=torch.float64, requires_grad=True)
    _, spent = spend(h, 0.01, "graves")
    (gradient,) = torch.autograd.grad(spent.cost, h)
    assert int(spent.steps) == 4
    assert gradient.tolist() == [-1, -1, -1, 0, 0]


def test_interpolated_weights_sum_to_less_than_one() -> None:
    ones = torch.ones(1, 1, dtype=torch.float64)
    for value, total in ((0.4, 0.712), (0.1, 0.65)):
        mean = torch.zeros(1, 1, dtype=torch.float64)
        weights, _ = spend(torch.full((1, 20), value, dtype=torch.float64), 0.01, "t2t")
        for n in range(20):
            mean = add_weighted(mean, ones, weights[:, n], "t2t")
        assert abs(float(mean) - total) < 5e-3


def test_what_is_not_real_costs_nothing() -> None:
    real = torch.tensor([[True, True, False], [False, False, False]])
    spent = begin(real, torch.float64)
    p, spent = spent.step(torch.full((2, 3), 0.6, dtype=torch.float64), 0.01, last=False)
    assert p.tolist() == [[0.6, 0.6, 0], [0, 0, 0]]
    p, spent = spent.step(torch.full((2, 3), 0.6, dtype=torch.float64), 0.01, last=True)
    close(mean_cost(spent, real), torch.tensor(2.4, dtype=torch.float64))
    close(mean_cost(begin(real & False, torch.float64), real & False), torch.tensor(0.0, dtype=torch.float64))
