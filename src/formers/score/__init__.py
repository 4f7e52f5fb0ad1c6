"""What is added to the attention scores, beside the dot product."""

from formers.score.base import NoScore, Score
from formers.score.distance import ByDistance
from formers.score.relative import Relative

__all__ = ["ByDistance", "NoScore", "Relative", "Score"]
