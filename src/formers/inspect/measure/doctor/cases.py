"""The requests that every executor is checked with, and their results by dense attention on the CPU in float64.

Short rows: every pattern that options alone describe, over all keys, with rows that end early, of one query, and with a term by distance.
Long rows: a few patterns at a length that reaches the executors for long rows and is no multiple of their blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args, get_origin

import torch
from torch import Tensor

from formers.attention.executors import dense
from formers.attention.request import Request
from formers.core import FormersError, Range
from formers.inspect.measure.doctor.compare import TYPES, rounded
from formers.inspect.measure.part_text import spell
from formers.inspect.measure.patterns import pattern_classes
from formers.patterns import BigBird, Causal, Full, Local, Pattern, Strided
from formers.score import ByDistance

BATCH, HEADS, WIDTH = 2, 2, 16
"""16 is the smallest head width for which FlexAttention has kernels."""
SHORT, LONG = 9, 600
DROPOUT = 0.25
NAMES = ("values", "gradient of q", "gradient of k", "gradient of v", "gradient of the term's queries", "gradient of the term's table")


class Case(NamedTuple):
    """A request, what it is called, and its tensors in float64: q, k, v, and the factors of a term by distance."""

    name: str
    request: Request
    tensors: tuple[Tensor, ...]
    long: bool = False
    half: bool = False
    """Whether it is also checked in half precision by executors that compile a kernel for each case."""


def short_cases() -> Iterator[Case]:
    """Every pattern in short rows."""
    q, k, v = _inputs(SHORT)
    everything, last = Range(0, SHORT), Range(SHORT - 1, 1)
    plain = Request(Full(), everything, everything, HEADS, WIDTH**-0.5)
    for pattern in specimens():
        bound, name = pattern.at(0).of(SHORT), spell(pattern)
        yield Case(name, plain._replace(pattern=bound), (q, k, v))
        padded = plain._replace(pattern=pattern.at(0), valid=_valid(SHORT, SHORT - 2, 0))
        yield Case(f"{name} with queries without keys", padded, (q, k, v))
        yield Case(f"{name} of one query", plain._replace(pattern=bound, queries=last), (q[:, :, -1:], k, v))
        yield _with_term(f"{name} with a term by distance", plain._replace(pattern=bound), (q, k, v))
    yield _with_dropout("Causal with dropout", plain._replace(pattern=Causal()), (q, k, v))


def long_cases() -> Iterator[Case]:
    """A few patterns in long rows; the first ones matter most."""
    tensors, everything = _inputs(LONG), Range(0, LONG)
    plain = Request(Full(), everything, everything, HEADS, WIDTH**-0.5)
    window, strided = Local(window=64), Strided(stride=24)
    bigbird = BigBird(block=24, random_blocks=2).at(0)
    valid = _valid(LONG, LONG - 70, 200)
    words = f"in rows of {LONG}"
    yield Case(f"{spell(window)} {words}", plain._replace(pattern=window), tensors, True, True)
    yield Case(f"{spell(window)} {words} with padding", plain._replace(pattern=window, valid=valid), tensors, True, True)
    yield Case(f"{spell(bigbird)} {words}", plain._replace(pattern=bigbird.of(LONG)), tensors, True)
    yield _with_term(f"Causal {words} with a term by distance", plain._replace(pattern=Causal()), tensors)
    yield Case(f"{spell(strided)} {words}", plain._replace(pattern=strided), tensors, True)
    yield Case(f"{spell(bigbird)} {words} with padding", plain._replace(pattern=bigbird, valid=valid), tensors, True)
    yield _with_dropout(f"{spell(window)} {words} with dropout", plain._replace(pattern=window), tensors)
    yield Case(f"Full {words} with padding", plain._replace(valid=valid), tensors, True)


def on_device(case: Case, precision: str, device: torch.device | str) -> tuple[Request, list[Tensor]]:
    """A case on a device in a precision: its request and its tensors, which require gradients."""
    tensors = [x.to(TYPES[precision]).to(device).requires_grad_() for x in case.tensors]
    request, valid = case.request, case.request.valid
    if isinstance(request.bias, ByDistance):
        request = request._replace(bias=replace(request.bias, q=tensors[3], table=tensors[4]))
    return request._replace(valid=None if valid is None else valid.to(device)), tensors


def reference(case: Case, precision: str) -> list[Tensor]:
    """Dense attention on the CPU in float64, of tensors rounded to a precision: values and gradients."""
    return computed(dense.run, *on_device(rounded_case(case, precision), "float64", "cpu"))


def rounded_case(case: Case, precision: str) -> Case:
    """The case with its tensors rounded to a precision."""
    return case._replace(tensors=tuple(rounded(x, precision) for x in case.tensors))


def computed(run: Callable[[Tensor, Tensor, Tensor, Request], Tensor], request: Request, tensors: list[Tensor]) -> list[Tensor]:
    """The values of an executor, and the gradients of an uneven sum of them."""
    q, k, v = tensors[:3]
    values = run(q, k, v, request)
    total = (values * uneven(values)).sum()
    return [values.detach(), *torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)]


def uneven(values: Tensor) -> Tensor:
    """Weights of the shape of `values`, -1 to 1 in steps of 1/4, which every precision holds exactly."""
    numbers = (torch.arange(values.numel()) * 7 % 9 - 4) / 4.0
    return numbers.view(values.shape).to(values.dtype).to(values.device)


def specimens() -> list[Pattern]:
    """Small instances of every pattern that options alone describe: its switches in every position, its sizes small."""
    return [pattern for cls in pattern_classes() for pattern in _instances(cls)]


def _inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64, generator=numbers) for _ in range(3))
    return q, k, v


def _valid(length: int, *ends: int) -> Tensor:
    """The mask (batch, length) of rows with so many real keys."""
    return torch.arange(length)[None] < torch.tensor(ends)[:, None]


def _with_term(name: str, request: Request, tensors: tuple[Tensor, ...]) -> Case:
    """The request with a term by distance; its factors are among the tensors."""
    q, k, v = tensors
    term = ByDistance(k * request.scale, v[0] * 0.5, None, request.queries, request.keys)
    return Case(name, request._replace(bias=term), (q, k, v, term.q, term.table), request.keys.length == LONG)


def _with_dropout(name: str, request: Request, tensors: tuple[Tensor, ...]) -> Case:
    """The request with dropout; column c of the values is 1 at one key and 0 at others, so that the output shows single weights."""
    q, k, _ = tensors
    v = torch.zeros_like(k)
    keys = watched(request.keys.length)
    v[:, :, keys, torch.arange(len(keys))] = 1.0
    return Case(name, request._replace(dropout=DROPOUT), (q, k, v), request.keys.length == LONG)


def watched(length: int) -> Tensor:
    """The keys whose weights the output of a case with dropout shows, one for each column."""
    count = min(length, WIDTH)
    return torch.arange(count) * length // count


def _instances(cls: type[Pattern]) -> Iterator[Pattern]:
    """Instances of a pattern: for each combination of switches the first of 3, 2, 4 and 1 that it accepts as all of its sizes."""
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
