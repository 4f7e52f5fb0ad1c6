"""The words that recipes and the command line use for parts, and the parts they stand for."""

from __future__ import annotations

from formers.core import FormersError, nearest
from formers.position import Learned, NoPosition, Position, Sinusoidal
from formers.residual import Bare, PostNorm, PreNorm, Residual

POSITIONS: dict[str, Position] = {"sinusoidal": Sinusoidal(), "learned": Learned(), "none": NoPosition()}
RESIDUALS: dict[str, Residual] = {"post": PostNorm(), "pre": PreNorm(), "bare": Bare()}


def position(word: str) -> Position:
    """The position part of a word."""
    if word not in POSITIONS:
        raise FormersError(f"position={word!r} is unknown: {nearest(word, POSITIONS)}")
    return POSITIONS[word]


def residual(word: str) -> Residual:
    """The residual part of a word."""
    if word not in RESIDUALS:
        raise FormersError(f"norm={word!r} is unknown: {nearest(word, RESIDUALS)}")
    return RESIDUALS[word]
