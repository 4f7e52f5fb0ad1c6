"""A model of a random spec with one batch of inputs, and how what it computes is compared.

Models are float64, so that a wrong result is far larger than rounding.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import formers
from contracts.random_parts import Fields
from contracts.specimens import Subject, given_to
from formers import Output, Spec, State
from formers.heads import NoHead
from formers.score.span import SpanScore

BATCH = 3
EXACT = 1e-9
"""How far two float64 ways to compute one thing may be apart, relative to the largest number among them."""


class Violation(AssertionError):
    """A property that does not hold."""


@dataclass(frozen=True)
class Case:
    """A model that was built from a random spec, with one batch of inputs."""

    read: Subject
    x: Tensor
    targets: Tensor | None
    seed: int

    @property
    def spec(self) -> Spec:
        return self.read.model.spec

    def run(self, x: Tensor | None = None, read: Subject | None = None, update: int | None = None, **given: Any) -> Output:
        """The forward pass of the model, with the random numbers of the seed."""
        read, x = self.read if read is None else read, self.x if x is None else x
        torch.manual_seed(self.seed)
        return read.run(x, update=update, **given)

    def value(self, **given: Any) -> Tensor:
        """A number that depends on everything a training pass computes: its loss, and its hidden states, unevenly weighted."""
        out = self.run(targets=self.targets, **given)
        assert out.hidden is not None
        weight = torch.linspace(-1.0, 1.0, out.hidden.numel(), dtype=out.hidden.dtype).sin().view(out.hidden.shape)
        total = (out.hidden * weight).mean()
        return total if out.loss is None else total + out.loss

    def slopes(self, **given: Any) -> list[Tensor]:
        """The gradients of `value` by all parameters; 0 where it does not depend on one."""
        return self.slopes_and_value(**given)[1:]

    def slopes_and_value(self, **given: Any) -> list[Tensor]:
        """`value`, and its gradients by all parameters."""
        value = self.value(**given)
        return [value.detach(), *torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)]

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.read.model.parameters())


def build(fields: Fields, seed: int) -> Case:
    """The model of a spec with no parameter left at 0 or 1, and its inputs; FormersError where the spec or its inputs are refused."""
    spec = Spec(**fields)
    if Spec(**json.loads(json.dumps(spec.model_dump(mode="json")))) != spec:
        raise Violation("the spec does not survive JSON and back")
    torch.manual_seed(seed)
    model = formers.build(spec).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for module in model.modules():
            if isinstance(module, SpanScore):  # a span outside of its bounds is no state of the model, and at a bound there is a kink
                module.share.uniform_(0.05, 0.95)
    label = None if spec.labels is None else torch.randint(spec.labels, (BATCH,))
    read = Subject(model, BATCH, None if spec.encoder is None else source(spec), label=label)
    length = spec.length if seed % 3 else max(1, spec.length - seed % 5)
    case = Case(read, read.input(length), None if isinstance(spec.head, NoHead) else read.targets(length), seed)
    with torch.no_grad():
        case.run()
    case.value()
    return case


def source(spec: Spec) -> Tensor:
    """What an encoder reads; without an input of its own it reads as its decoder does."""
    reader = spec if spec.encoder is None or (spec.encoder.vocab is None and spec.encoder.features is None) else spec.encoder
    return given_to(reader, BATCH, min(5, spec.length if spec.encoder is None else spec.encoder.length))


def same(found: Tensor, wanted: Tensor, what: str, tolerance: float = EXACT) -> None:
    """Fails unless two tensors agree, relative to the largest of their numbers."""
    if found.shape != wanted.shape:
        raise Violation(f"{what}: shapes {tuple(found.shape)} and {tuple(wanted.shape)}")
    if not (found.isfinite().all() and wanted.isfinite().all()):
        raise Violation(f"{what}: not all numbers are finite")
    if not found.numel():
        return
    apart, size = float((found - wanted).abs().max()), max(1.0, float(wanted.abs().max()))
    if apart > tolerance * size:
        raise Violation(f"{what}: {apart:.2g} apart")


def all_same(found: Iterable[Tensor], wanted: Iterable[Tensor], names: Iterable[str], what: str) -> None:
    """Fails unless lists of tensors agree, relative to the largest number in all of them."""
    pairs = list(zip(names, found, wanted, strict=True))
    size = max((float(w.abs().max()) for _, _, w in pairs if w.numel()), default=1.0)
    for name, one, other in pairs:
        same(one, other, f"{what} of {name}", EXACT * max(1.0, size))


def slope_along(case: Case, direction: Sequence[Tensor], step: float, **given: Any) -> tuple[float, float]:
    """The numeric derivative of `value` along a direction of the parameters, and the size of what it was computed from."""
    ends = []
    for sign in (1.0, -2.0):
        with torch.no_grad():
            for p, d in zip(case.parameters, direction, strict=True):
                p.add_(d, alpha=sign * step)
        ends.append(float(case.value(**given).detach()))
    with torch.no_grad():
        for p, d in zip(case.parameters, direction, strict=True):
            p.add_(d, alpha=step)
    return (ends[0] - ends[1]) / (2 * step), max(abs(ends[0]), 1.0)


def compare_slopes(case: Case, gradients: dict[str, list[Tensor]], **given: Any) -> None:
    """Fails unless gradients agree with numeric derivatives along random directions.

    A step may cross a kink (a ReLU, a bucket, a halting step) or be too long for a steep function. So a derivative that disagrees counts
    only if half the step gives the same derivative, and only if it is found along two directions.
    """
    wrong: dict[str, int] = dict.fromkeys(gradients, 0)
    generator = torch.Generator().manual_seed(case.seed)
    for step in (1e-6, 1e-7, 1e-6, 1e-5, 1e-8, 1e-9):
        direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in case.parameters]
        number, size = slope_along(case, direction, step, **given)
        found = {name: sum(float((g * d).sum()) for g, d in zip(gradients[name], direction, strict=True)) for name in wrong}
        far = {name: slope for name, slope in found.items() if not near(slope, number, size, step)}
        if not far:
            return
        wrong = {name: wrong[name] for name in far}
        if near(slope_along(case, direction, step / 2, **given)[0], number, size, step):
            wrong = {name: count + 1 for name, count in wrong.items()}
            if max(wrong.values()) > 1:
                worst = max(far, key=lambda name: wrong[name])
                raise Violation(f"{worst}: the derivative is {number:.8g}, and by the gradients {far[worst]:.8g}")


def near(slope: float, number: float, size: float, step: float) -> bool:
    """Whether a derivative is what a numeric one says, which was computed from numbers of a size by a step."""
    return abs(slope - number) <= 1e-5 * (abs(slope) + abs(number)) + 1e-14 / step * size + 1e-7


def in_segments(
    case: Case, read: Subject, x: Tensor, cuts: list[int], state: State | None = None, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    """The hidden states of x, read segment by segment, and the state behind them."""
    state, found = read.model.initial_state(len(x)) if state is None else state, []
    for a, b in itertools.pairwise(cuts):
        if a < b:
            out = case.run(x[:, a:b], read, state=state, mask=None if mask is None else mask[:, a:b])
            state = out.state
            found.append(out.hidden)
    return torch.cat(found, dim=1), state
