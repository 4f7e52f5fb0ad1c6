"""Weights by name, held against those that a model asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Mismatch(NamedTuple):
    """A weight that is not there, not asked for, or of another shape."""

    name: str
    have: str
    want: str


def mismatch(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mismatch | None:
    """The first weight, by name, in which two sets differ; None where names and shapes agree."""
    for name in sorted(weights.keys() | wanted.keys()):
        have, want = ("nothing" if t is None else str(tuple(t.shape)) for t in (weights.get(name), wanted.get(name)))
        if have != want:
            return Mismatch(name, have, want)
    return None
