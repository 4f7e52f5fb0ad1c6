"""The base of all parts: positions, state, the frozen base class of specs, errors and keyed random numbers."""

from formers.core.cache import HiddenMemory, KVCache
from formers.core.context import IGNORED, Context, Source, Watch, compact
from formers.core.errors import FormersError, nearest
from formers.core.part import Part, Slot
from formers.core.positions import ExplicitPositions, Positions, Range, StridedPositions
from formers.core.raster import Raster
from formers.core.sizes import Sizes
from formers.core.state import ConvMemory, RecurrentMemory, State

__all__ = [
    "IGNORED",
    "Context",
    "ConvMemory",
    "ExplicitPositions",
    "FormersError",
    "HiddenMemory",
    "KVCache",
    "Part",
    "Positions",
    "Range",
    "Raster",
    "RecurrentMemory",
    "Sizes",
    "Slot",
    "Source",
    "State",
    "StridedPositions",
    "Watch",
    "compact",
    "nearest",
]
