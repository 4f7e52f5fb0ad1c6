"""What is on this machine, what of it works, and what would give more: `formers doctor`."""

from formers.inspect.measure.doctor.examine import complaints, examine
from formers.inspect.measure.doctor.selftest import self_test

__all__ = ["complaints", "examine", "self_test"]
