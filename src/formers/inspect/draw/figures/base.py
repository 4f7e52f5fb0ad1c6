"""What a figure is: a value with options of its own that draws a subject, the spec or the model of a member or of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from formers.core import FormersError, Part
from formers.inspect.draw.figure import new_figure
from formers.inspect.measure.members import member_spec
from formers.model import Model, Spec, build, load

WIDTH = 5.0
"""Inches that a figure is wide: letters of 9 points are then 7 pixels high or more where a telephone shows it 390 pixels wide."""


@dataclass(frozen=True)
class FigureSubject:
    """What is drawn: a member with options, or a run."""

    member: str
    options: Mapping[str, Any] = field(default_factory=dict)
    run: Path | None = None

    @cached_property
    def spec(self) -> Spec:
        """The spec of the run, or of the member."""
        return self.model.spec if self.run is not None else self.variant()

    def variant(self, **changes: Any) -> Spec:
        """The spec of the member with some options changed."""
        return member_spec(self.member, options={**self.options, **changes})

    @cached_property
    def model(self) -> Model:
        """The model of the run, or a new one of the member, always the same."""
        if self.run is not None:
            return load(self.run, "cpu", "last")
        torch.manual_seed(0)
        return build(self.spec)

    @property
    def title(self) -> str:
        """What a caption calls it."""
        if self.run is None:
            return self.member
        return f"{self.spec.name or 'model'} of {self.run.resolve().name}".replace("$", r"\$")  # no formula begins here


class DrawnFigure(NamedTuple):
    """A figure that can be written."""

    figure: Any
    caption: str
    values: dict[str, Any]
    """What was drawn, ready for JSON."""


class Figure(Part):
    """Options of a figure, by name; `draw` makes it."""

    @classmethod
    def display_name(cls) -> str:
        return f"the figure {cls.__name__}"

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        """The figure of a subject, to be written to a path."""
        raise TypeError(f"{type(self).__name__} draws nothing: define draw(subject, path).")


def wide_figure(path: Path, height: float) -> Any:
    """An empty figure as wide as all of them."""
    return new_figure(path, WIDTH, height)


def sized(name: str, value: int, most: int) -> int:
    """A number of things to draw; refuses more than can be told apart."""
    if not 1 <= value <= most:
        raise FormersError(f"{name}={value} cannot be told apart in a figure: give 1 ... {most}.")
    return value
