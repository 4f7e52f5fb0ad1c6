"""Terms that are added to the attention scores, beside the dot product."""

from formers.score.base import NoScore, Score
from formers.score.distance import ByDistance
from formers.score.relative import Relative
from formers.score.span import DynamicSpan, FixedSpan, Span

__all__ = ["ByDistance", "DynamicSpan", "FixedSpan", "NoScore", "Relative", "Score", "Span"]
