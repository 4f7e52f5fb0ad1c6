"""Learning: the settings, the loop, and the judgement."""

from formers.training.config import Settings
from formers.training.evaluate import evaluate
from formers.training.loop import Trained, train
from formers.training.task import Task, prepare

__all__ = ["Settings", "Task", "Trained", "evaluate", "prepare", "train"]
