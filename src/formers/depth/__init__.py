"""How often, and with which weights, a block is applied."""

from formers.depth.adaptive import Adaptive
from formers.depth.base import Depth
from formers.depth.stacked import Shared, Stacked

__all__ = ["Adaptive", "Depth", "Shared", "Stacked"]
