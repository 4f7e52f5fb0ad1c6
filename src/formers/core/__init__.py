"""What every part stands on: positions, state, the frozen spec base, errors and keyed random numbers."""

from formers.core.cache import Cache, Hidden
from formers.core.errors import FormersError, nearest
from formers.core.part import Part, Slot
from formers.core.positions import Comb, Index, Positions, Range
from formers.core.raster import Raster
from formers.core.sizes import Sizes
from formers.core.state import Carried, State, Tail
from formers.core.stream import IGNORED, Source, Stream, Watch, compact

__all__ = [
    "IGNORED",
    "Cache",
    "Carried",
    "Comb",
    "FormersError",
    "Hidden",
    "Index",
    "Part",
    "Positions",
    "Range",
    "Raster",
    "Sizes",
    "Slot",
    "Source",
    "State",
    "Stream",
    "Tail",
    "Watch",
    "compact",
    "nearest",
]
