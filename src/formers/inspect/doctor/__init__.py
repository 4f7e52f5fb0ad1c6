"""What is on this machine, what of it works, and what would give more: `formers doctor`."""

from formers.inspect.doctor.examine import complaints, examine
from formers.inspect.doctor.report import describe

__all__ = ["complaints", "describe", "examine"]
