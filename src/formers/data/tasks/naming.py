"""Parses `--data task:...`: the name of an exercise and its options, as in task:addition,digits=12,test_digits=20.

Only commas and equals signs separate them, so a shell needs no quotes. The member decides whether it is an exercise of text or of
vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from formers.core import FormersError, nearest
from formers.data.tasks.addition import Addition, AdditionVectors
from formers.data.tasks.agreement import Agreement
from formers.data.tasks.exercise import PARTS, Exercise, Strings, Vectors
from formers.data.tasks.logic import Logic, LogicVectors
from formers.data.tasks.lookup import Recall, Retrieval
from formers.data.tasks.parity import Parity, ParityVectors
from formers.data.tasks.sort import SortVectors
from formers.data.tasks.words import Copy, Duplication, Reverse, Sort
from formers.data.text import fingerprint

PREFIX = "task:"


class Forms(NamedTuple):
    """An exercise as text, and as vectors if it has that form."""

    strings: type[Strings]
    vectors: type[Vectors] | None = None


EXERCISES: Mapping[str, Forms] = {
    "copy": Forms(Copy),
    "reverse": Forms(Reverse),
    "addition": Forms(Addition, AdditionVectors),
    "parity": Forms(Parity, ParityVectors),
    "logic": Forms(Logic, LogicVectors),
    "sort": Forms(Sort, SortVectors),
    "recall": Forms(Recall),
    "retrieval": Forms(Retrieval),
    "agreement": Forms(Agreement),
    "duplication": Forms(Duplication),
}


def forms_of(data: str | Path) -> Forms:
    """The forms of the exercise that data name."""
    name = _split(data)[0]
    if name not in EXERCISES:
        raise FormersError(f"{PREFIX}{name} is no task: {nearest(name, EXERCISES)}")
    return EXERCISES[name]


def open_strings(data: str | Path) -> Strings:
    """The exercise of text that data name."""
    forms = forms_of(data)
    return forms.strings(**_options(data, forms.strings, forms.vectors))


def open_vectors(data: str | Path) -> Vectors:
    """The exercise of vectors that data name."""
    kind = forms_of(data).vectors
    if kind is None:
        others = ", ".join(PREFIX + name for name, forms in EXERCISES.items() if forms.vectors is not None)
        raise FormersError(f"{PREFIX}{_split(data)[0]} is of text, and has no vectors: use {others}.")
    return kind(**_options(data, kind, forms_of(data).strings))


def written(exercise: Exercise) -> str:
    """The name that opens an exercise again: with the options that differ from their defaults."""
    plain = {name: field.default for name, field in type(exercise).model_fields.items()}
    chosen = {name: value for name, value in exercise if value != plain[name]}
    ordered = sorted(chosen, key=lambda name: name in Exercise.model_fields)  # common options come last
    return ",".join([PREFIX + exercise.name, *(f"{name}={chosen[name]}" for name in ordered)])


def mark(exercise: Exercise) -> str:
    """The sha256 of an exercise and its first rows, which detects different rows under the same name."""
    rows: list[object]
    if isinstance(exercise, Strings):
        rows = [exercise.held(part, row) for part in PARTS for row in range(min(3, exercise.rows))]
    else:
        assert isinstance(exercise, Vectors)
        sizes = torch.tensor([exercise.least, exercise.hardest])
        found = exercise.sample(torch.Generator().manual_seed(0), sizes, exercise.steps(exercise.hardest))
        rows = [found.tokens.tolist(), found.targets.tolist()]
    return fingerprint("task", exercise.model_dump(mode="json"), rows)


def _split(data: str | Path) -> tuple[str, list[str]]:
    name, *rest = str(data).removeprefix(PREFIX).split(",")
    return name.strip(), [option.strip() for option in rest if option.strip()]


def _options(data: str | Path, kind: type[Exercise], other: type[Exercise] | None) -> dict[str, int | str]:
    """The options after the name of an exercise, for one of its forms; raises for an option that only the other form has."""
    found: dict[str, int | str] = {}
    for option in _split(data)[1]:
        name, sign, value = option.partition("=")
        if not sign or not name or not value:
            raise FormersError(f"{option!r} of {data} is not an option: write name=value, as in task:addition,digits=12,test_digits=20.")
        if name in found:
            raise FormersError(f"{data} sets {name} twice: set it once.")
        if name not in kind.model_fields and other is not None and name in other.model_fields:
            mine, its = ("text", "vectors") if issubclass(kind, Strings) else ("vectors", "text")
            options = ", ".join(known for known in kind.model_fields if known not in Exercise.model_fields)
            raise FormersError(
                f"{PREFIX}{_split(data)[0]} has the option {name} as {its}, and this member reads it as {mine}: give some of {options}."
            )
        found[name] = int(value) if value.removeprefix("-").isdecimal() else value
    return found
