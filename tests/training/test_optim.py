"""The schedules are the equation, and the optimiser decays matrices only."""

from __future__ import annotations

import math

import pytest

import formers
from formers.training.config import Settings
from formers.training.optim import FLOOR, optimizer, rate


def test_the_paper_s_schedule_up_to_its_constant():
    settings = Settings(minutes=1, learning_rate=512**-0.5 * 4000**-0.5, warmup=4000, schedule="inverse-sqrt")
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


def test_only_matrices_decay_and_every_parameter_is_optimised_once():
    model = formers.create("decoder", vocab=20, dim=16, heads=2, layers=2, position="learned")
    groups = optimizer(model, Settings(weight_decay=0.3)).param_groups
    decay = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    assert len(decay) == sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        expected = 0.3 if parameter.dim() == 2 and "embedding" not in name and "table" not in name else 0.0
        assert decay[id(parameter)] == expected, name
