"""A refusal: a combination of parts that cannot work, and questions to a spec that several refusals ask.

Attentions and patterns may be wrapped, in ByLayer, Alternate, PerHead, `|` and `&`. So a refusal asks for the `kinds` of an attention, for
the parts of each layer (`Spec.layers`), or for a property that wrappers compute from their parts: never for the outermost type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from formers.attention import Attention
from formers.core import Part
from formers.model.spec import Spec
from formers.patterns import Pattern


class Refusal(NamedTuple):
    """A combination that cannot work: when it is met, and the sentence that says why and what to do."""

    when: Callable[[Spec], bool]
    says: Callable[[Spec], str]


def has(spec: Spec, *kinds: type[Attention]) -> bool:
    """Whether one of the attentions of a stack is of one of some kinds."""
    return any(isinstance(kind, kinds) for kind in spec.attention.kinds)


def patterns_of(spec: Spec, *kinds: type[Attention]) -> list[Pattern]:
    """The patterns of the layers that have one of some kinds of attention."""
    return [pattern for attention, pattern in spec.layers if isinstance(attention, kinds)]


def name_of(parts: Iterable[Part]) -> str:
    """The name of the first of some parts."""
    return next(type(part).__name__ for part in parts)


def not_causal(spec: Spec) -> str:
    """The name of a layer's pattern that is not causal."""
    return name_of(pattern for _, pattern in spec.layers if not pattern.is_causal)


def ponders(spec: Spec) -> bool:
    """Whether a recurrent layer decides by itself how many steps a token takes."""
    return any(kind.ponders is not None for kind in spec.attention.kinds)
