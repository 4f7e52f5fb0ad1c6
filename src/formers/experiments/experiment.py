"""An experiment: some ways to learn one task, what is shown of each line, and the figures that a claim is made of.

Its page is written by people, and the tables in it by the command: they stand between two marks, and take the place of those that stood
there before.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from rich.table import Table as RichTable

from formers.experiments.learning import Course, Way, lessons
from formers.inspect.draw.curves import Panel, save_panels
from formers.inspect.draw.tables import add_row, new_table

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
"""What stands around the tables of a page."""
Lines = Sequence[dict[str, Any]]


class Table(NamedTuple):
    """Titles, and rows of as many words."""

    titles: Sequence[str]
    rows: list[list[str]]

    def markdown(self) -> list[str]:
        """Its lines; all but the first column are figures."""
        lines = [f"| {' | '.join(row)} |" for row in (self.titles, *self.rows)]
        return [lines[0], "|---|" + "---:|" * (len(self.titles) - 1), *lines[1:]]


@dataclass(frozen=True)
class Experiment:
    """The task, the models and their training."""

    steps: int
    batch: int
    rate: float

    name: ClassVar[str]
    limits: ClassVar[dict[str, tuple[float, float]]]
    """What the figures of a claim are held against."""
    parts: ClassVar[Sequence[str]] = ("valid",)
    """What is judged."""
    titles: ClassVar[Sequence[str]]
    """Of the table that has a row for each way and seed."""

    @property
    def course(self) -> Course:
        """How all learn."""
        return Course(self.steps, self.batch, self.rate)

    def ways(self) -> dict[str, Way]:
        """Who learns, in the order of the table."""
        raise TypeError(f"{type(self).__name__} trains nobody: define ways.")

    def words(self) -> str:
        """The setting for people."""
        raise TypeError(f"{type(self).__name__} says nothing about its setting: define words.")

    def cells(self, line: dict[str, Any]) -> list[str]:
        """A row of the table."""
        raise TypeError(f"{type(self).__name__} shows nothing: define cells.")

    def claims(self, lines: Lines) -> dict[str, float]:
        """The figures that limits are of."""
        raise TypeError(f"{type(self).__name__} claims nothing: define claims.")

    def further(self, lines: Lines) -> Table:
        """A second table, over all seeds."""
        raise TypeError(f"{type(self).__name__} has one table: define further.")

    def panels(self, lines: Lines) -> list[Panel]:
        """The picture."""
        raise TypeError(f"{type(self).__name__} draws nothing: define panels.")

    def names(self) -> list[str]:
        """What the first column of the table has."""
        return list(self.ways())

    def closing(self, results: Mapping[str, Any]) -> tuple[RichTable | str, ...]:
        """What is printed after the last row: the second table, and the setting."""
        further = self.further(results["lines"])
        table = new_table(*further.titles, right=len(further.titles) - 1)
        for row in further.rows:
            add_row(table, *row)
        return table, results["words"]

    def run(self, seeds: int, line: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
        """Trains each way with each seed; `line` is given each as it is found."""
        lines = lessons(self.ways(), seeds, self.parts, line)
        machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        return {"setting": asdict(self), "words": self.words(), "seeds": seeds, "machine": machine, "lines": lines, **self.claims(lines)}

    def save(self, results: Mapping[str, Any], path: Path) -> Path:
        """Writes the picture."""
        return save_panels(self.panels(results["lines"]), path, f"{self.name.capitalize()}: {results['words']}")

    def markdown(self, results: Mapping[str, Any], command: str, picture: Path | None = None) -> str:
        """The command, what it ran on, and its tables."""
        lines = results["lines"]
        claims = [[name.replace("_", " "), f"{results[name]:.3f}", f"{low:g} to {high:g}"] for name, (low, high) in self.limits.items()]
        blocks = [
            ["```console", f"$ {command}", "```"],
            [f"Setting: {results['words']}. Seeds 0 to {results['seeds'] - 1}. One thread of {results['machine']}."],
            Table(self.titles, [self.cells(line) for line in lines]).markdown(),
            self.further(lines).markdown(),
            Table(["`--check`", "found", "limits"], claims).markdown(),
            *([[f"![{self.name}]({picture.as_posix()})"]] if picture is not None else []),
        ]
        return "\n\n".join("\n".join(block) for block in blocks)


def onto(page: Path, figures: str) -> Path:
    """Writes figures into a page, in place of those that it has; a page that is not there has nothing else."""
    old = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, mark, rest = old.partition(BEGIN)
    after = rest.partition(END)[2] if mark else "\n"
    page.write_text(f"{before if mark else old}{BEGIN}\n{figures}\n{END}{after}", encoding="utf-8")
    return page
