"""Who attends to whom: patterns as frozen values over integer positions."""

from formers.patterns.base import Intersection, Pattern, Union
from formers.patterns.full import Causal, Full
from formers.patterns.local import Local

__all__ = ["Causal", "Full", "Intersection", "Local", "Pattern", "Union"]
