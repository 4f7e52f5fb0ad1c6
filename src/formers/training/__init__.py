"""Learning: the settings, the loop, checkpoints and the judgement."""

from formers.training.config import Settings
from formers.training.evaluate import evaluate
from formers.training.protocol import Protocol
from formers.training.run import evaluate_run
from formers.training.start import Trained, resume, train
from formers.training.task import Task, prepare

__all__ = ["Protocol", "Settings", "Task", "Trained", "evaluate", "evaluate_run", "prepare", "resume", "train"]
