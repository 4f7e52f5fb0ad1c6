"""Every executor on a device against dense on the CPU: values and gradients, for every simple pattern, with queries without keys.

Executors and patterns are those that are registered: a new one is checked without a word here.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args, get_origin

import torch
from torch import Tensor

from formers.attention import EXECUTORS
from formers.attention.attend import Executor
from formers.attention.request import Request
from formers.core import FormersError, Range
from formers.inspect.measure.part_text import spell
from formers.inspect.measure.patterns import pattern_classes
from formers.patterns import Full, Pattern
from formers.score import ByDistance

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 9, 8
LIMITS = {"float64": 1e-10, "float32": 1e-4}
"""The largest difference that rounding explains."""
NAMES = ("values", "gradient of q", "gradient of k", "gradient of v")


class Case(NamedTuple):
    """A request, what it is called, and what dense makes of it in float64: values and gradients."""

    name: str
    request: Request
    wanted: list[Tensor]


def check_executors(device: str) -> list[dict[str, Any]]:
    """A verdict on each executor, ready for JSON."""
    inputs = _inputs()
    cases = list(_cases(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch's own kernels do not count
        return [_verdict(name, executor, device, cases, inputs) for name, executor in EXECUTORS.items()]


def specimens() -> list[Pattern]:
    """Small instances of every pattern that options alone describe: its switches in every position, its sizes small."""
    return [pattern for cls in pattern_classes() for pattern in _instances(cls)]


def _verdict(name: str, executor: Executor, device: str, cases: list[Case], inputs: list[Tensor]) -> dict[str, Any]:
    """Whether an executor works, refuses everything, or is wrong; with its largest differences and what it refuses."""
    largest: dict[str, float] = {}
    refused: dict[str, list[str]] = {}
    wrong: list[str] = []
    checked = 0
    for case, (precision, limit) in itertools.product(cases, LIMITS.items()):
        if executor.kernels is not None and checked >= executor.kernels:
            break
        try:
            q, k, v = (x.to(getattr(torch, precision)).to(device).requires_grad_() for x in _of(case.request, inputs))
        except (RuntimeError, TypeError):  # a device without the precision
            continue
        here = _on(case.request, q)
        try:
            why = executor.unsupported(here, q, k, v)
            got = _computed(executor, here, [q, k, v]) if why is None else []
        except Exception as error:  # whatever a kernel throws
            wrong.append(f"{case.name}, {precision}: {type(error).__name__}: {_brief(error)}")
            continue
        if why is not None:
            refused.setdefault(why, []).append(f"{case.name}, {precision}")
        checked += why is None
        for what, ours, right in zip(NAMES, got, case.wanted, strict=False):
            difference = _difference(ours, right)
            largest[precision] = max(largest.get(precision, 0.0), difference)
            if difference > limit:
                wrong.append(f"{case.name}, {precision}: largest difference {difference:.1e} in {what}")
    return {
        "executor": name,
        "about": executor.about,
        "device": device,
        "checked": checked,
        "status": "wrong" if wrong else "works" if largest else "refuses",
        "largest_difference": {precision: value if math.isfinite(value) else "not a number" for precision, value in largest.items()},
        "refuses": refused,
        "wrong": wrong,
    }


def _inputs() -> list[Tensor]:
    """q, k and v."""
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64, generator=numbers) for _ in range(3)]


def _cases(inputs: list[Tensor]) -> Iterator[Case]:
    """Every pattern over all keys, over some of the first row's keys and none of the second's, of the last query alone, and with a term."""
    some = torch.arange(LENGTH)[None] < torch.tensor([[LENGTH - 2], [0]])
    everybody, last = Range(0, LENGTH), Range(LENGTH - 1, 1)
    term = ByDistance(inputs[1].clone(), inputs[2][0].clone(), None, everybody, everybody)  # their gradients are not checked
    plain = Request(Full(), everybody, everybody, HEADS, WIDTH**-0.5)
    ways = {
        "": plain, " with queries without keys": plain._replace(valid=some), " of one query": plain._replace(queries=last),
        " with a term by distance": plain._replace(bias=term),
    }  # fmt: skip
    for pattern in specimens():
        for words, way in ways.items():
            request = way._replace(pattern=pattern.at(0) if way.valid is not None else pattern.at(0).of(LENGTH))
            ready = [x.clone().requires_grad_() for x in _of(request, inputs)]
            yield Case(f"{spell(pattern)}{words}", request, _computed(EXECUTORS["dense"], request, ready))


def _of(request: Request, inputs: list[Tensor]) -> list[Tensor]:
    """The queries that a request is about, and all keys and values."""
    q, k, v = inputs
    return [q[:, :, -request.queries.length :], k, v]


def _computed(executor: Executor, request: Request, inputs: list[Tensor]) -> list[Tensor]:
    """The values and the gradients of an uneven sum of them."""
    q, k, v = inputs
    values = executor.run(q, k, v, request)
    weights = torch.linspace(-1.0, 1.0, values.numel(), dtype=torch.float64).sin().view(values.shape)
    total = (values * weights.to(values.dtype).to(values.device)).sum()
    return [values.detach(), *torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)]


def _on(request: Request, like: Tensor) -> Request:
    """A request on a tensor's device, its term in the tensor's precision."""
    valid, term = request.valid, request.bias
    if isinstance(term, ByDistance):
        term = replace(term, q=term.q.to(like), table=term.table.to(like))
    return request._replace(valid=None if valid is None else valid.to(like.device), bias=term)


def _difference(ours: Tensor, right: Tensor) -> float:
    """The largest difference of two tensors; infinite where ours is not a number, or not of that shape."""
    if ours.shape != right.shape:
        return math.inf
    found = (ours.cpu().to(torch.float64) - right).abs().max().item()
    return found if math.isfinite(found) else math.inf


def _instances(cls: type[Pattern]) -> Iterator[Pattern]:
    """Instances of a pattern whose options it accepts: numbers are tried from 3 down and up, until all fit together."""
    fields = {name: field for name, field in cls.model_fields.items() if field.is_required() or field.annotation is bool}
    switches = [name for name, field in fields.items() if field.annotation is bool]
    sizes = [name for name in fields if name not in switches]
    for positions in itertools.product((True, False), repeat=len(switches)):
        for number in (3, 2, 4, 1):
            chosen = {name: _sized(fields[name].annotation, number) for name in sizes}
            try:
                yield cls(**chosen, **dict(zip(switches, positions, strict=True)))
                break
            except FormersError:
                continue


def _sized(annotation: Any, number: int) -> Any:
    """A number, or as many of them as a tuple has."""
    if get_origin(annotation) is tuple:
        return tuple(_sized(inner, number) for inner in get_args(annotation) if inner is not ...)
    return number


def _brief(error: Exception) -> str:
    return (str(error) or "no message").splitlines()[0].rstrip(".")
