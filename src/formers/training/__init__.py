"""Learning: the settings, the loop, and the judgement."""

from formers.training.config import Settings
from formers.training.evaluate import evaluate, exact_match
from formers.training.loop import Trained, train
from formers.training.run import evaluate_run
from formers.training.task import Task, prepare

__all__ = ["Settings", "Task", "Trained", "evaluate", "evaluate_run", "exact_match", "prepare", "train"]
