"""The transition between attentions, applied to each position alone."""

from formers.feedforward.base import FeedForward, NoFeedForward
from formers.feedforward.chunked import Chunked
from formers.feedforward.dense import Dense

__all__ = ["Chunked", "Dense", "FeedForward", "NoFeedForward"]
