"""What is added to the attention scores, beside the dot product."""

from formers.score.base import NoScore, Score

__all__ = ["NoScore", "Score"]
