"""The schedules are the equation, and the optimiser decays matrices only."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import formers
from formers.training.config import Settings
from formers.training.optim import FLOOR, clip, optimizer, rate
from helpers import close, sweep


def test_the_paper_s_schedule_up_to_its_constant():
    settings = Settings(steps=100_000, learning_rate=512**-0.5 * 4000**-0.5, warmup=4000, schedule="inverse-sqrt")
    for step in (1, 100, 4000, 10_000, 100_000):
        assert rate(settings, step, 0.5) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_cosine_falls_from_the_peak_to_its_floor():
    settings = Settings(steps=100, learning_rate=2.0, warmup=99, schedule="cosine")
    assert rate(settings, 5, 0.0) == pytest.approx(1.0)
    assert rate(settings, 10, 0.0) == pytest.approx(2.0)
    assert rate(settings, 50, 0.5) == pytest.approx(2.0 * (FLOOR + (1 - FLOOR) / 2))
    assert rate(settings, 99, 1.0) == pytest.approx(2.0 * FLOOR)
    assert math.isfinite(rate(Settings(warmup=0), 1, 0.0))


def test_constant_stays():
    settings = Settings(learning_rate=3.0, warmup=2, schedule="constant")
    assert [rate(settings, s, s / 10) for s in (1, 2, 9)] == [1.5, 3.0, 3.0]


@sweep("name", ["adamw", "momentum", "adagrad"])
def test_only_matrices_decay_and_every_parameter_is_optimised_once(name):
    model = formers.create("decoder", vocab=20, dim=16, heads=2, layers=2, position="learned")
    groups = optimizer(model, Settings(weight_decay=0.3, optimizer=name)).param_groups
    decay = {id(p): g["weight_decay" if name == "adamw" else "decay"] for g in groups for p in g["params"]}
    assert len(decay) == sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = 0.3 if parameter.dim() == 2 and "embedding" not in name and "table" not in name else 0.0
        assert decay[id(parameter)] == expected, name


def moved(settings, slopes):
    """A matrix after steps with these gradients, from ones, at the peak of the rate."""
    layer = nn.Linear(2, 2, bias=False).double()
    nn.init.ones_(layer.weight)
    made = optimizer(layer, settings)
    for slope in slopes:
        layer.weight.grad = slope.clone()
        made.step()
    return layer.weight.detach()


def test_momentum_and_adagrad_are_their_equations_and_decay_as_adamw_does():
    torch.manual_seed(0)
    slopes = [torch.randn(2, 2, dtype=torch.float64) for _ in range(4)]
    for decay in (0.0, 0.5):
        x, v, y, s = torch.ones(2, 2).double(), 0.0, torch.ones(2, 2).double(), 0.0
        for g in slopes:
            v = 0.9 * v + g
            x = (1 - 0.1 * decay) * x - 0.1 * v
            s = s + g * g
            y = (1 - 0.1 * decay) * y - 0.1 * g / (s.sqrt() + 1e-10)
        common = {"learning_rate": 0.1, "weight_decay": decay}
        close(moved(Settings(optimizer="momentum", momentum=0.9, **common), slopes), x)
        close(moved(Settings(optimizer="adagrad", **common), slopes), y)


def test_gradients_are_clipped_together_or_each_by_itself():
    def clipped(**how):
        weights = [nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(4)]
        for weight, size in zip(weights[:3], (3.0, 0.01, 0.0), strict=True):
            weight.grad = torch.tensor([size, 0.0, 0.0], dtype=torch.float64)
        norm = clip(weights, Settings(**how))
        assert norm == pytest.approx((9 + 1e-4) ** 0.5)
        assert weights[3].grad is None
        return [weight.grad[0].item() for weight in weights[:3]]

    assert clipped(clip=0.3) == pytest.approx([0.3, 0.001, 0.0], rel=1e-4)
    assert clipped(clip_each=0.03, clip=1e-3) == pytest.approx([0.03, 0.01, 0.0])


@sweep("size", [0.01, 30.0])
def test_clipping_is_torchs_to_the_bit(size):
    slopes = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) * size for shape in ((3, 4), (5,), ())]
    ours, others = ([nn.Parameter(torch.zeros_like(slope)) for slope in slopes] for _ in range(2))
    for weight, other, slope in zip(ours, others, slopes, strict=True):
        weight.grad, other.grad = slope.clone(), slope.clone()
    assert clip(ours, Settings(clip=1.0)) == nn.utils.clip_grad_norm_(others, 1.0, foreach=True)
    for weight, other in zip(ours, others, strict=True):
        assert torch.equal(weight.grad, other.grad)
