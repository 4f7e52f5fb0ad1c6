"""Memories: what is carried from one training segment to the next."""

from formers.memory.base import Memory, NoMemory
from formers.memory.carry import Carry
from formers.memory.recurrence import Recurrence

__all__ = ["Carry", "Memory", "NoMemory", "Recurrence"]
