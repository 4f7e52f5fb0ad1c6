"""The words that recipes and the command line use for parts, and the parts they stand for."""

from __future__ import annotations

from typing import TypeVar

from formers.core import FormersError, Slot, nearest
from formers.position import Learned, NoPosition, PerLayer, Position, Sinusoidal
from formers.residual import Bare, PostNorm, PreNorm, Residual

P = TypeVar("P", bound=Slot)

POSITIONS: dict[str, Position] = {"sinusoidal": Sinusoidal(), "learned": Learned(), "per-layer": PerLayer(), "none": NoPosition()}
RESIDUALS: dict[str, Residual] = {"post": PostNorm(), "pre": PreNorm(), "bare": Bare()}


def position(word: str) -> Position:
    """The position part of a word."""
    return _named("position", word, POSITIONS)


def residual(word: str) -> Residual:
    """The residual part of a word."""
    return _named("norm", word, RESIDUALS)


def _named(option: str, word: str, known: dict[str, P]) -> P:
    if word not in known:
        raise FormersError(f"{option}={word!r} is unknown: {nearest(word, known)}")
    return known[word]
