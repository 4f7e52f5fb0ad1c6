"""Gradients compared with numeric derivatives along random directions of all parameters.

c(h) = (f(h) - f(-h)) / 2h              = f' + O(h^2)     central difference, f(h) = f along the direction, h away
r    = (4 c(h/2) - c(h)) / 3            = f' + O(h^4)     Richardson's extrapolation
g(h) = (f(h) - 2 f(0) + f(-h)) / h      = O(h)            forward less backward difference

A numeric derivative is known where r stays the same at half the step and 2 g(h/2) - g(h), which is O(h^3), is nearly 0. The latter is not
at a kink (a ReLU at 0), where a central difference converges, too, but to no derivative. Where no step is good enough, along any of some
directions, nothing is known of the gradients: that is `Undecided`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contracts.cases import Case, Violation

DIRECTIONS = 4
STEPS = (1e-6, 1e-7, 1e-5, 1e-8, 1e-4, 1e-9)
"""Those that most often suffice come first."""
RELATIVE = 2e-5
"""How far gradients and numeric derivatives may be apart."""
ABSOLUTE = 1e-7
ROUNDING = 1e-14
"""How exact a value of the function is, relative to its size."""


class Undecided(AssertionError):
    """No numeric derivative converges, so that nothing is known of the gradients."""


def compare_slopes(case: Case, gradients: dict[str, list[Tensor]], **given: Any) -> None:
    """Fails unless gradients agree with the numeric derivative along a random direction, of which those that are unknown do not count."""
    generator = torch.Generator().manual_seed(case.seed)
    wrong = None
    for _ in range(DIRECTIONS):
        direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in case.parameters]
        line = Line(case, direction, given)
        found = {name: sum(float((g * d).sum()) for g, d in zip(slopes, direction, strict=True)) for name, slopes in gradients.items()}
        quick = line.central(STEPS[0])
        if all(abs(slope - quick) <= line.tolerance(slope, quick, STEPS[0]) for slope in found.values()):
            return
        number = line.derivative()
        if number is None:
            continue
        far = {name: slope for name, slope in found.items() if abs(slope - number) > line.tolerance(slope, number)}
        if not far:
            return
        if wrong is not None:  # a second direction: no accident of the first
            raise wrong
        name, slope = max(far.items(), key=lambda each: abs(each[1] - number))
        wrong = Violation(f"{name}: the derivative is {number:.8g}, and by the gradients {slope:.8g}")
    raise Undecided(f"along {DIRECTIONS} directions no numeric derivative converges") if wrong is None else wrong


class Line:
    """What `value` of a case is along a direction of the parameters, which stay what they are."""

    def __init__(self, case: Case, direction: Sequence[Tensor], given: dict[str, Any]) -> None:
        self.case, self.direction, self.given = case, direction, given
        self.known: dict[float, float] = {}

    def at(self, step: float) -> float:
        """The value so many steps away."""
        if step not in self.known:
            parameters = self.case.parameters
            before = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                for p, d in zip(parameters, self.direction, strict=True):
                    p.add_(d, alpha=step)
            self.known[step] = float(self.case.value(**self.given).detach())
            with torch.no_grad():
                for p, old in zip(parameters, before, strict=True):
                    p.copy_(old)
        return self.known[step]

    def central(self, h: float) -> float:
        """The central difference."""
        return (self.at(h) - self.at(-h)) / (2 * h)

    def gap(self, h: float) -> float:
        """Forward less backward difference."""
        return (self.at(h) - 2 * self.at(0.0) + self.at(-h)) / h

    def rounding(self, h: float) -> float:
        """How far differences may be wrong because values are rounded."""
        return ROUNDING * max(1.0, abs(self.at(h))) / h

    def tolerance(self, slope: float, number: float, h: float | None = None) -> float:
        """How far a gradient may be from a derivative, which was computed by one central difference of a step, or is known well."""
        return RELATIVE * max(abs(slope), abs(number)) + ABSOLUTE + (0.0 if h is None else self.rounding(h))

    def derivative(self) -> float | None:
        """The numeric derivative, if it is known to a quarter of the tolerance at some step."""
        for h in STEPS:
            once, twice = ((4 * self.central(s / 2) - self.central(s)) / 3 for s in (h, h / 2))
            kink = 2 * self.gap(h / 4) - self.gap(h / 2)
            if max(abs(twice - once), abs(kink)) <= self.tolerance(twice, twice) / 4:
                return twice
        return None
