"""What a member carries from one training segment to the next."""

from formers.memory.base import Memory, NoMemory
from formers.memory.recurrence import Recurrence

__all__ = ["Memory", "NoMemory", "Recurrence"]
