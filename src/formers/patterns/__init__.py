"""Attention patterns: the sets of keys that queries may see, as frozen values over integer positions."""

from formers.patterns.base import Pattern
from formers.patterns.bigbird import BigBird
from formers.patterns.combine import Alternate, Intersection, PerHead, Union
from formers.patterns.factorized import Column, Fixed, Strided, Summary
from formers.patterns.full import Causal, Full
from formers.patterns.globals import Globals
from formers.patterns.grid import Blocks, LocalGrid
from formers.patterns.local import Local
from formers.patterns.ordered import OrderedGrid

__all__ = [
    "Alternate",
    "BigBird",
    "Blocks",
    "Causal",
    "Column",
    "Fixed",
    "Full",
    "Globals",
    "Intersection",
    "Local",
    "LocalGrid",
    "OrderedGrid",
    "Pattern",
    "PerHead",
    "Strided",
    "Summary",
    "Union",
]
