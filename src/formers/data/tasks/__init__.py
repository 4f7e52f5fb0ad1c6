"""Generated tasks with any number of rows; the right answer and the difficulty of each row are known exactly."""

from formers.data.tasks.addition import Addition, AdditionVectors
from formers.data.tasks.agreement import Agreement
from formers.data.tasks.batches import Answers, Blanks, DrawnLabels, DrawnPairs, DrawnVectors, Exercised
from formers.data.tasks.columns import Columns
from formers.data.tasks.exercise import Exercise, Strings, Vectors
from formers.data.tasks.logic import Logic, LogicVectors
from formers.data.tasks.lookup import Recall, Retrieval
from formers.data.tasks.naming import EXERCISES, open_strings, open_vectors
from formers.data.tasks.parity import Parity, ParityVectors
from formers.data.tasks.sort import SortVectors
from formers.data.tasks.words import Copy, Duplication, Reverse, Sort, duplication, token_accuracy

__all__ = [
    "EXERCISES",
    "Addition",
    "AdditionVectors",
    "Agreement",
    "Answers",
    "Blanks",
    "Columns",
    "Copy",
    "DrawnLabels",
    "DrawnPairs",
    "DrawnVectors",
    "Duplication",
    "Exercise",
    "Exercised",
    "Logic",
    "LogicVectors",
    "Parity",
    "ParityVectors",
    "Recall",
    "Retrieval",
    "Reverse",
    "Sort",
    "SortVectors",
    "Strings",
    "Vectors",
    "duplication",
    "open_strings",
    "open_vectors",
    "token_accuracy",
]
