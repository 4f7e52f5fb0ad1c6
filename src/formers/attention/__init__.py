"""How keys are found and values mixed: the equation, its executors, and multi-head attention."""

from formers.attention.aligned import Aligned
from formers.attention.attend import EXECUTORS, attend, choose, explain
from formers.attention.lowrank import LowRank
from formers.attention.lsh import LSH, ByLayer
from formers.attention.multihead import Attention, DotProduct
from formers.attention.pondering import Pondering
from formers.attention.recurrent import Recurrent
from formers.attention.shared import SharedQK
from formers.attention.window import Window

__all__ = [
    "EXECUTORS",
    "LSH",
    "Aligned",
    "Attention",
    "ByLayer",
    "DotProduct",
    "LowRank",
    "Pondering",
    "Recurrent",
    "SharedQK",
    "Window",
    "attend",
    "choose",
    "explain",
]
