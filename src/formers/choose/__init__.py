"""Which members can do a job, what each costs on this machine, and which two or three to try first."""

from formers.choose.recommend import choose
from formers.choose.situation import TASKS, Situation, situation

__all__ = ["TASKS", "Situation", "choose", "situation"]
