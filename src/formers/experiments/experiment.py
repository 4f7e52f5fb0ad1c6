"""Base of the experiments: several models trained on one task, a table row for each, and the figures of a claim.

Its page is written by hand, and its tables by the command: they are between two marks and replace the earlier ones.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from rich.table import Table as RichTable

from formers.experiments.learning import Setup, TrainingSettings, train_all
from formers.inspect.draw.curves import Panel, save_panels
from formers.inspect.draw.tables import add_row, new_table

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
"""The marks around the tables of a page."""
Lines = Sequence[dict[str, Any]]


class Table(NamedTuple):
    """Column titles, and rows of text."""

    titles: Sequence[str]
    rows: list[list[str]]

    def markdown(self) -> list[str]:
        """The lines of a Markdown table; all but the first column are right-aligned."""
        lines = [f"| {' | '.join(row)} |" for row in (self.titles, *self.rows)]
        return [lines[0], "|---|" + "---:|" * (len(self.titles) - 1), *lines[1:]]


@dataclass(frozen=True)
class Experiment:
    """The task, the models and their training."""

    steps: int
    batch: int
    rate: float
    device: str = field(default="cpu", kw_only=True)

    name: ClassVar[str]
    limits: ClassVar[dict[str, tuple[float, float]]]
    """The allowed range of each figure of the claim."""
    parts: ClassVar[Sequence[str]] = ("valid",)
    """The parts of the data to evaluate."""
    titles: ClassVar[Sequence[str]]
    """The columns of the table with a row for each setup and seed."""

    @property
    def training(self) -> TrainingSettings:
        """The training settings of all setups."""
        return TrainingSettings(self.steps, self.batch, self.rate, device=self.device)

    def setups(self) -> dict[str, Setup]:
        """The models and their data, in the order of the table."""
        raise TypeError(f"{type(self).__name__} trains no model: define setups.")

    def words(self) -> str:
        """One line that describes the setup."""
        raise TypeError(f"{type(self).__name__} says nothing about its setting: define words.")

    def cells(self, line: dict[str, Any]) -> list[str]:
        """A row of the table."""
        raise TypeError(f"{type(self).__name__} shows nothing: define cells.")

    def claims(self, lines: Lines) -> dict[str, float]:
        """The figures that limits bound."""
        raise TypeError(f"{type(self).__name__} claims nothing: define claims.")

    def further(self, lines: Lines) -> Table:
        """A second table, over all seeds."""
        raise TypeError(f"{type(self).__name__} has one table: define further.")

    def panels(self, lines: Lines) -> list[Panel]:
        """The picture."""
        raise TypeError(f"{type(self).__name__} draws nothing: define panels.")

    def names(self) -> list[str]:
        """What the first column of the table has."""
        return list(self.setups())

    def closing(self, results: Mapping[str, Any]) -> tuple[RichTable | str, ...]:
        """Printed after the last row: the second table, and the setup."""
        further = self.further(results["lines"])
        table = new_table(*further.titles, right=len(further.titles) - 1)
        for row in further.rows:
            add_row(table, *row)
        return table, results["words"]

    def run(self, seeds: int, line: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
        """Trains each setup with each seed; `line` is called with each result."""
        lines = train_all(self.setups(), seeds, self.parts, line)
        machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        return {"setting": asdict(self), "words": self.words(), "seeds": seeds, "machine": machine, "lines": lines, **self.claims(lines)}

    def save(self, results: Mapping[str, Any], path: Path) -> Path:
        """Writes the picture."""
        return save_panels(self.panels(results["lines"]), path, f"{self.name.capitalize()}: {results['words']}")

    def markdown(self, results: Mapping[str, Any], command: str, picture: Path | None = None) -> str:
        """The results as Markdown: the command, the machine, and the tables."""
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
    """Writes the tables into a page, in place of the earlier ones; a missing page is created with the tables only."""
    old = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, mark, rest = old.partition(BEGIN)
    after = rest.partition(END)[2] if mark else "\n"
    page.write_text(f"{before if mark else old}{BEGIN}\n{figures}\n{END}{after}", encoding="utf-8")
    return page
