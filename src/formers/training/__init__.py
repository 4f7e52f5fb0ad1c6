"""Training: settings, trainer, checkpoints, and the evaluation of runs."""

from formers.training.config import Settings
from formers.training.run import evaluate_run
from formers.training.start import Trained, resume, train
from formers.training.task import Task, prepare

__all__ = ["Settings", "Task", "Trained", "evaluate_run", "prepare", "resume", "train"]
