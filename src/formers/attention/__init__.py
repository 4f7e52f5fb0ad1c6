"""How keys are found and values mixed: the equation, its executors, and multi-head attention."""

from formers.attention.attend import EXECUTORS, attend, choose, explain
from formers.attention.lowrank import LowRank
from formers.attention.multihead import Attention, DotProduct

__all__ = ["EXECUTORS", "Attention", "DotProduct", "LowRank", "attend", "choose", "explain"]
