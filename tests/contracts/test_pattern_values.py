"""Patterns are frozen values: equal by their fields, hashable, and unchanged by JSON."""

from __future__ import annotations

import json

import pytest

from contracts.specimens import patterns
from formers.patterns import Causal, Full, Local, Pattern
from helpers import refused, sweep

SWEPT = sweep("pattern", patterns())


@SWEPT
def test_equal_by_value_and_hashable(pattern: Pattern) -> None:
    twin = type(pattern)(**{name: getattr(pattern, name) for name in type(pattern).model_fields})
    assert twin == pattern
    assert twin is not pattern
    assert hash(twin) == hash(pattern)


def test_specimens_differ() -> None:
    assert len(set(patterns())) == len(patterns())
    assert Full() != Causal()
    assert Local(window=2) != Local(window=3)


@SWEPT
def test_frozen(pattern: Pattern) -> None:
    for name in type(pattern).model_fields:
        with pytest.raises(ValueError, match="frozen"):
            setattr(pattern, name, getattr(pattern, name))


@SWEPT
def test_survives_json(pattern: Pattern) -> None:
    written = json.loads(json.dumps(pattern.model_dump(mode="json")))
    assert written["kind"] == type(pattern).__name__
    assert Pattern.read(written) == pattern
    assert type(pattern)(**written) == pattern


@SWEPT
def test_a_misspelt_field_is_refused_with_the_nearest(pattern: Pattern) -> None:
    fields = {name: getattr(pattern, name) for name in type(pattern).model_fields}
    with refused(type(pattern).__name__, "'quite_something_else'"):
        type(pattern)(**fields, quite_something_else=1)
    for name in fields:
        wrong = name[:-2] + name[-1] + name[-2]
        given = {wrong if n == name else n: value for n, value in fields.items()}
        with refused(repr(wrong), f"did you mean {name!r}?"):
            type(pattern)(**given)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with refused("'Locla'", "did you mean 'Local'?"):
        Pattern.read({"kind": "Locla", "window": 3})
    with refused("'Locla'"):
        Full() | {"kind": "Locla", "window": 3}


@sweep("window", [0, -1, 2.5, "wide", None])
def test_a_window_must_be_a_positive_integer(window: object) -> None:
    with refused("window", repr(window)):
        Local(window=window)
    with refused("'window'"):
        Local()
