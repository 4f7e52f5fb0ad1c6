"""What is on this machine, what of it works, and what would give more: `formers doctor`."""

from formers.inspect.measure.doctor.examine import complaints, examine

__all__ = ["complaints", "examine"]
