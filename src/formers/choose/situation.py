"""The job that a member is chosen for: a kind of task, the length of a row, and data of that kind to time members on.

Members are timed on drawn data of the same kind and shape, so that the user's own data need not be opened once for each of them. A task
of ours (task:copy, babi:1) is drawn already, and is read as it is.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from formers.core import FormersError, nearest
from formers.data import kind_of
from formers.data.catalogue import NAMES, NUMBERS, PAIRS
from formers.data.examples import Examples
from formers.data.files import parallel
from formers.data.images import open_images
from formers.data.labelled import open_labelled
from formers.data.pairs import has_pairs, open_pairs
from formers.data.reading import Reading
from formers.family.members import member as find_member
from formers.heads import Classify, MaskedLM
from formers.training import Task, prepare

TASKS = {
    "text": "write text, token by token",
    "masked": "fill in masked tokens, reading in both directions",
    "classify": "give a text a label",
    "translate": "write a target for a source",
    "images": "write images, value by value",
}
"""What `--task` may be."""
EXERCISE = "exercise"
"""The task of data that are drawn: task:copy, babi:1."""
LENGTH = 256
"""The length of a row where nothing says another."""
LONGEST = 1 << 20
SIDE = 32
"""The sides of an image where nothing says others; it has three channels."""
COVERED = 0.95
"""The share of the user's texts that are at most as long as the row."""
MANY = 0.2
"""Where a file has more labels than this share of its texts, its second column holds targets."""
ROWS = 200
"""Drawn pairs, labelled texts and images."""


class Situation(NamedTuple):
    """What a member is chosen for."""

    task: str
    length: int
    """Tokens of a row; of images, the values of one."""
    data: str | None = None
    shape: tuple[int, int, int] | None = None
    """Of images: height, width, channels."""
    levels: int = 256
    classes: int = 2
    why_length: str = ""

    def short(self, length: int) -> Situation:
        """The same job with shorter rows; of images, with smaller ones."""
        if self.shape is None:
            return self._replace(length=length)
        height, width, channels = self.shape
        shrink = max(1.0, (self.length / length) ** 0.5)
        shape = max(4, round(height / shrink)), max(4, round(width / shrink)), channels
        return self._replace(shape=shape, length=shape[0] * shape[1] * channels)

    def prepare(self, member: str, folder: Path, options: dict[str, Any] | None = None) -> Task:
        """A member with drawn data of this kind, kept in a folder; one that cannot do the job is refused with the reason."""
        sizes = dict(options or {})
        if self.task == EXERCISE:
            assert self.data is not None
            return prepare(member, self.data, None, sizes, Reading())
        if self.task != "images" and "length" in find_member(member).options:
            sizes["length"] = self.length
        reading = Reading(tokens="bytes") if self.task != "images" else Reading(levels=self.levels)
        if self.task != "images" and "levels" in find_member(member).options:
            raise FormersError(f"{member} reads images and nothing else: it is for --task images.")
        path = str(self._drawn(folder))
        try:
            task = prepare(member, path, None, sizes, reading)
        except FormersError as error:
            if path not in str(error):
                raise
            raise FormersError(f"{member} reads pairs, a source and its target: it is for --task translate.") from None
        _refuse_other(self.task, member, task)
        return task

    def _drawn(self, folder: Path) -> Path:
        """A file of drawn data, made unless it is there; rows are as long as the situation says."""
        form = {"text": "txt", "masked": "txt", "classify": "tsv", "translate": "tsv", "images": "npy"}[self.task]
        size = "x".join(map(str, self.shape)) if self.shape else str(self.length)
        path = folder / f"{self.task}-{size}.{form}"
        if path.exists():
            return path
        rng = np.random.default_rng(0)
        if self.shape is not None:
            np.save(path, rng.integers(self.levels, size=(ROWS, *self.shape), dtype=np.uint8))
        elif form == "txt":
            path.write_bytes(rng.integers(97, 123, size=max(40 * self.length, 1 << 16), dtype=np.uint8).tobytes())
        else:
            letters = random.Random(0)
            least = max(1, self.length // 2 if self.task == "translate" else self.length)
            with path.open("w", newline="", encoding="ascii") as file:
                writer = csv.writer(file, delimiter="\t", lineterminator="\n")
                for row in range(max(ROWS, 4 * self.classes)):
                    text, other = ("".join(letters.choices("abcdefghij", k=max(1, least - 1))) for _ in range(2))
                    writer.writerow((text, other if self.task == "translate" else f"class {row % self.classes}"))
        return path


def _refuse_other(task: str, member: str, found: Task) -> None:
    """Refuses a member that was prepared for another job than the one asked for."""
    head, encoder = found.spec.head, found.spec.encoder
    if task == "text" and isinstance(head, MaskedLM):
        raise FormersError(f"{member} reads in both directions and does not write text: it is for --task masked or classify.")
    if task == "masked" and not isinstance(head, MaskedLM):
        raise FormersError(f"{member} writes from left to right and fills in no masked tokens: it is for --task text.")
    if task == "classify" and not isinstance(head, Classify):
        raise FormersError(f"{member} has no option `classes`, so it does not classify: it is for other tasks.")
    if task == "translate" and encoder is None:
        raise FormersError(f"{member} has no encoder for a source: it is for other tasks.")


def situation(data: str | None = None, length: int | None = None, task: str | None = None) -> Situation:
    """The situation that data, or a length and a task, describe."""
    if data is None and length is None:
        raise FormersError("nothing says what to choose for: give --data with your data, or --length with the tokens of a row.")
    if task is not None and task not in TASKS:
        raise FormersError(f"there is no task {task!r}: {nearest(task, TASKS)}")
    if length is not None and not 4 <= length <= LONGEST:
        raise FormersError(f"length={length} cannot be priced: give 4 ... {LONGEST:,}.")
    if data is None:
        assert length is not None
        if task != "images":
            return Situation(task or "text", length)
        side = max(4, round((length / 3) ** 0.5))
        return Situation("images", side * side * 3, shape=(side, side, 3), why_length=f"{side} x {side} x 3 values, nearest to {length:,}")
    return _of_data(data, length, task)


def _of_data(data: str, length: int | None, task: str | None) -> Situation:
    """The situation of the user's data, of which only what is needed is read."""
    kind = kind_of(data)
    if kind in ("task", "vectors", "stories"):
        _refuse_task(data, task, (None,), "rows that are drawn, whose members are those that can read them: leave --task out")
        return Situation(EXERCISE, LENGTH if length is None else length, data)
    if kind == "images":
        _refuse_task(data, task, (None, "images"), "images: use --task images, or leave it out")
        opened = open_images(data)
        values = opened.shape[0] * opened.shape[1] * opened.shape[2]
        about = f"{' x '.join(map(str, opened.shape))} values"
        return Situation("images", values, data, opened.shape, opened.levels, why_length=about)
    if data == NUMBERS or data.split(":")[0] == PAIRS or len(parallel(data)) == 2 or (task == "translate" and has_pairs(data)):
        _refuse_task(data, task, (None, "translate"), "pairs: use --task translate, or leave it out")
        return _measured("translate", data, length, open_pairs(data))
    if data not in NAMES and kind == "labels" and task in (None, "classify"):
        if task is None and has_pairs(data) and _many_targets(pairs := open_pairs(data)):
            return _measured("translate", data, length, pairs)
        found = open_labelled(data)
        return _measured("classify", data, length, found)._replace(classes=len(found.labels or ()))
    if data not in NAMES and task is None and Path(data).is_file() and has_pairs(data):
        return _measured("translate", data, length, open_pairs(data))
    _refuse_task(data, task, (None, "text", "masked"), "plain text: use --task text or masked, or give data with labels or pairs")
    return Situation(task or "text", LENGTH if length is None else length, data, why_length="" if length else "the default; give --length")


def _many_targets(pairs: Examples) -> bool:
    """Whether the second column of a file holds targets, and not labels, of which there are few."""
    train = pairs.parts["train"]
    return len({target for _, target in train}) > MANY * len(train)


def _refuse_task(data: str, task: str | None, known: tuple[str | None, ...], what: str) -> None:
    if task not in known:
        raise FormersError(f"--task {task} does not fit {data}, which has {what}.")


def _measured(task: str, data: str, length: int | None, examples: Examples) -> Situation:
    """The situation of pairs or labelled texts: rows as long as nearly all of them, in bytes."""
    if length is not None:
        return Situation(task, length, data)
    train = examples.parts["train"]
    some = [train[i] for i in range(0, len(train), max(1, len(train) // 5000))]
    sizes = sorted(max(len(part.encode()) for part in (two if task == "translate" else two[:1])) for two in some)
    found = sizes[min(len(sizes) - 1, int(COVERED * len(sizes)))] + 1
    return Situation(task, max(found, 4), data, why_length=f"{COVERED:.0%} of the texts have at most so many bytes")
