"""Attention: the equation, its executors, and multi-head attention."""

from formers.attention.attend import EXECUTORS, attend, choose, explain
from formers.attention.lowrank import LowRank
from formers.attention.lsh import LSH, ByLayer
from formers.attention.multihead import Attention, DotProduct
from formers.attention.shared_qk import SharedQK

__all__ = [
    "EXECUTORS",
    "LSH",
    "Attention",
    "ByLayer",
    "DotProduct",
    "LowRank",
    "SharedQK",
    "attend",
    "choose",
    "explain",
]
