"""A refusal: a combination of parts that cannot work, and helper functions that several refusals use.

Attentions and patterns may be wrapped, in ByLayer, Alternate, PerHead, `|` and `&`. So a refusal checks the `kinds` of an attention, the
parts of each layer (`Spec.layers`), or a property that wrappers compute from their parts: never the outermost type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from formers.attention import Attention
from formers.core import Part
from formers.model.spec import Spec
from formers.patterns import Pattern


class Refusal(NamedTuple):
    """A combination that cannot work: the condition, and the sentence with the reason and the fix."""

    when: Callable[[Spec], bool]
    message: Callable[[Spec], str]


def has(spec: Spec, *kinds: type[Attention]) -> bool:
    """Whether an attention of the stack has one of some classes."""
    return any(isinstance(kind, kinds) for kind in spec.attention.kinds)


def patterns_of(spec: Spec, *kinds: type[Attention]) -> list[Pattern]:
    """The patterns of the layers whose attention has one of some classes."""
    return [pattern for attention, pattern in spec.layers if isinstance(attention, kinds)]


def name_of(parts: Iterable[Part]) -> str:
    """The class name of the first of some parts."""
    return next(type(part).__name__ for part in parts)


def not_causal(spec: Spec) -> str:
    """The class name of a pattern that is not causal."""
    return name_of(pattern for _, pattern in spec.layers if not pattern.is_causal)


def ponders(spec: Spec) -> bool:
    """Whether a recurrent layer uses ACT."""
    return any(kind.ponders is not None for kind in spec.attention.kinds)
