"""What a member carries from one training segment to the next."""

from formers.memory.base import Memory, NoMemory

__all__ = ["Memory", "NoMemory"]
