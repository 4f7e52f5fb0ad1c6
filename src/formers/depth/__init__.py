"""The number of times that blocks are applied, and with which weights."""

from formers.depth.adaptive import Adaptive
from formers.depth.base import Depth
from formers.depth.stacked import Shared, Stacked

__all__ = ["Adaptive", "Depth", "Shared", "Stacked"]
