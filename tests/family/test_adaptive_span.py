"""The member adaptive-span: its slots, its presets, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import formers
from formers.memory import Recurrence
from formers.patterns import Local
from formers.residual import PostNorm
from formers.score import DynamicSpan, FixedSpan, Span
from helpers import refused, sweep

TINY: dict[str, Any] = {"vocab": 10, "dim": 16, "heads": 2, "layers": 1}


def test_the_slots_are_the_papers() -> None:
    spec = formers.spec("adaptive-span", span=60, ramp=5, span_penalty=0.5, **TINY)
    assert spec.score == Span(span=60, ramp=5, penalty=0.5)
    assert spec.pattern == Local(window=60, include_self=False)
    assert spec.memory == Recurrence(length=60), "the memory is as long as the span unless given"
    assert formers.spec("adaptive-span", span=60, dynamic=True, **TINY).score == DynamicSpan(span=60, penalty=2e-6)
    assert formers.spec("adaptive-span", span=60, fixed=True, **TINY).score == FixedSpan(span=60)


def test_the_base_is_the_authors_enwik8() -> None:
    spec = formers.spec("adaptive-span", preset="base", vocab=256)
    assert (spec.score, spec.residual) == (Span(span=8192, ramp=32, penalty=5e-7), PostNorm())
    sizes = (spec.dim, spec.heads, spec.depth.steps, spec.length)
    assert sizes == (512, 8, 12, 512)
    assert formers.build(spec).parameter_count() == pytest.approx(38e6, rel=0.03)


@sweep(
    ("options", "words"),
    [
        ({"span": 20, "memory": 19}, ("span=20", "memory=19")),
        ({"ramp": 0}, ("ramp=0", "greater")),
        ({"ramp": -3}, ("ramp=-3",)),
        ({"span": 0}, ("span=0",)),
        ({"span_penalty": -1e-6}, ("span_penalty=-1e-06", "greater")),
        ({"init": 1.5}, ("init=1.5", "less than or equal to 1")),
        ({"init": 0.0, "dynamic": True}, ("init=0.0",)),
        ({"fixed": True, "dynamic": True}, ("fixed=True", "dynamic=True")),
        ({"fixed": True, "init": 0.5}, ("fixed=True", "init=0.5")),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        formers.create("adaptive-span", **options, **TINY)
