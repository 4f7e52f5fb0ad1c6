"""Feed-forward sublayers, applied to each position separately, or to it and its neighbours."""

from formers.feedforward.base import FeedForward, NoFeedForward
from formers.feedforward.chunked import Chunked
from formers.feedforward.dense import Dense
from formers.feedforward.separable import SeparableConv

__all__ = ["Chunked", "Dense", "FeedForward", "NoFeedForward", "SeparableConv"]
