"""The gradient check finds small errors, is not misled by curvature, and reports missing derivatives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.cases import Case, Violation, build
from contracts.slopes import Undecided, compare_slopes
from helpers import sweep

SPECS = json.loads(Path(__file__).with_name("slopes.json").read_text())
"""Specs as `random_specs.draw` gave them when they were found: what a seed draws changes with every new part."""
STEEP = 20495
"""A spec along which a central difference of 1e-6 is 2e-5 wrong, and half of it nearly as much."""
SMALL_SPANS = 29060
"""A spec whose spans are tiny beside their ramps."""
LARGE = 3488
"""A spec whose scores would be 5e12, and the weights of fused attention wrong in the fourth digit, if its weights were not made smaller."""


@sweep("seed", [STEEP, SMALL_SPANS, LARGE, 3, 4, 6, 9])
def test_a_gradient_that_is_wrong_by_1e4th_is_found(seed: int) -> None:
    case = build(SPECS[str(seed)], seed)
    case.read.model.train()
    right = case.slopes()
    compare_slopes(case, {"right": right})
    for error in (1e-4, -1e-4):
        with pytest.raises(Violation, match="wrong: the derivative is"):
            compare_slopes(case, {"right": right, "wrong": [g * (1 + error) for g in right]})


@sweep("seed", [STEEP, SMALL_SPANS])
def test_one_wrong_parameter_is_found(seed: int) -> None:
    case = build(SPECS[str(seed)], seed)
    case.read.model.train()
    right = case.slopes()
    largest = max(range(len(right)), key=lambda i: float(right[i].norm()))
    with pytest.raises(Violation, match="wrong"):
        compare_slopes(case, {"wrong": [g * (1 + 1e-3 * (i == largest)) for i, g in enumerate(right)]})


class Function(Case):
    """A function of two numbers in place of a model."""

    def __init__(self, f: object, x: Tensor) -> None:
        object.__setattr__(self, "f", f)
        object.__setattr__(self, "point", x)
        object.__setattr__(self, "seed", 1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.point]

    def value(self, **given: object) -> Tensor:
        return self.f(self.point)


def test_at_a_kink_nothing_is_decided_and_near_one_everything() -> None:
    def folded(x: Tensor) -> Tensor:
        return x.relu().sum() + x.sin().sum()

    at = torch.tensor([0.0, 1.0], dtype=torch.float64)
    with pytest.raises(Undecided):
        compare_slopes(Function(folded, at), {"any": [torch.tensor([1.0, 1.0])]})
    for near in (3e-7, -3e-7):
        x = torch.tensor([near, 1.0], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(folded(x), x)
        case = Function(folded, x.detach())
        compare_slopes(case, {"right": [slope]})
        with pytest.raises(Violation):
            compare_slopes(case, {"wrong": [slope * 1.0001]})


def test_noise_is_undecided() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x * 1e9).sin().sum()

    with pytest.raises(Undecided):
        compare_slopes(Function(noisy, torch.tensor([0.3, 0.5], dtype=torch.float64)), {"any": [torch.tensor([1.0, 2.0])]})
