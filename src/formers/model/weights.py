"""Weights by name: names of earlier versions, and a comparison with those that a model needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")
RENAMED = {
    r"\bjoin_(attention|cross|feedforward)\.": r"residual_\1.",
}
"""Patterns of weight names in files of earlier versions, and the current names; applied to weights and optimiser states."""


def current_names(named: Mapping[str, T]) -> dict[str, T]:
    """The same values under the current names of the weights."""
    return {current_name(name): value for name, value in named.items()}


def current_name(name: str) -> str:
    """The current name of a weight of any version."""
    for old, new in RENAMED.items():
        name = re.sub(old, new, name)
    return name


class Mismatch(NamedTuple):
    """A weight that is missing, unexpected, or of another shape."""

    name: str
    have: str
    want: str


def mismatch(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mismatch | None:
    """The first weight, by name, in which two sets differ; None if names and shapes are equal."""
    for name in sorted(weights.keys() | wanted.keys()):
        have, want = ("nothing" if t is None else str(tuple(t.shape)) for t in (weights.get(name), wanted.get(name)))
        if have != want:
            return Mismatch(name, have, want)
    return None
