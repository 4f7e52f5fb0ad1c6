"""Questions with one, two and three supporting facts (bAbI, tasks 1 to 3): does adaptive computation take more steps for more facts?

`universal-transformer` reads a story, one fact per position, and answers at the last one, the question (docs/babi.md). It halts at each
position separately, or takes all its steps. It is trained jointly on 900 questions of each task and evaluated on 1,000 each. Positions
are relative, because answers depend on who did something last; with the paper's positions, `coordinate`, rows start at random ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from formers.core import FormersError
from formers.data import kind_of
from formers.experiments.experiment import Experiment, Lines, Table
from formers.experiments.learning import Setup, mean, names
from formers.inspect.draw.curves import Curve, Panel
from formers.training import prepare

ACT, FIXED = "act", "all steps"


@dataclass(frozen=True)
class Questions(Experiment):
    """The task, the models and their training."""

    steps: int = 2400
    batch: int = 32
    rate: float = 2e-3
    data: str = "babi:1-3"
    dim: int = 64
    heads: int = 4
    most: int = 6
    ponder: float = 0.01
    bias: float = -1.0
    position: str = "relative"
    offset: int = 10
    """Of coordinates."""
    dropout: float = 0.1
    length: int = 70

    name: ClassVar[str] = "stories"
    parts: ClassVar[tuple[str, ...]] = ("test",)
    titles: ClassVar[tuple[str, ...]] = ("model", "seed", "parameters", "right", "steps", "CPU seconds")
    limits: ClassVar[dict[str, tuple[float, float]]] = {"one_fact": (0.95, 1.0), "three_facts": (0.45, 1.0), "asked_growth": (0.5, 6.0)}
    """Means over the seeds, with halting: right answers to questions of the fewest and the most facts, and how many more steps the latter
    take at the question."""

    def setups(self) -> dict[str, Setup]:
        if kind_of(self.data) != "stories":
            raise FormersError(f"{self.data} has no stories with supporting facts: give some, such as babi:1-3.")
        found = {}
        for name, halting in ((ACT, {"act": "graves", "ponder": self.ponder, "halt_bias": self.bias}), (FIXED, {})):
            sizes: dict[str, Any] = {"dim": self.dim, "heads": self.heads, "steps": self.most, "length": self.length}
            sizes |= {"position": self.position, **({"offset": self.offset} if self.position == "coordinate" else {})}
            task = prepare("universal-transformer", self.data, None, {**sizes, "norm": "pre", "dropout": self.dropout, **halting})
            found[name] = Setup(task.spec, task.batches, self.training)
        return found

    def words(self) -> str:
        return (
            f"{self.data}, trained jointly; dim={self.dim}, {self.heads} heads, pre-norm, at most {self.most} steps, "
            f"ponder={self.ponder:g}, halt_bias={self.bias:g}, position={self.position}"
            f"{f' from 0 to {self.offset} on' if self.position == 'coordinate' else ''}, dropout {self.dropout:g}, "
            f"the last {self.length} facts; {self.training.words()}; evaluated on test"
        )

    def cells(self, line: dict[str, Any]) -> list[str]:
        found = line["test"]
        steps = f"{found['ponder']:.2f}" if "ponder" in found else str(self.most)
        return [line["way"], str(line["seed"]), f"{line['parameters']:,}", f"{found['accuracy']:.1%}", steps, f"{line['seconds']:,.0f}"]

    def claims(self, lines: Lines) -> dict[str, float]:
        facts = list(lines[0]["test"]["by"])
        least, most = (mean(lines, ACT, "test", "by", hard, "asked") for hard in (facts[0], facts[-1]))
        one, three = (mean(lines, ACT, "test", "by", hard, "accuracy") for hard in (facts[0], facts[-1]))
        return {"one_fact": one, "three_facts": three, "asked_growth": most - least}

    def further(self, lines: Lines) -> Table:
        """Means over the seeds, by number of supporting facts."""
        facts = list(lines[0]["test"]["by"])
        rows = [[f"right, {way}", *(f"{mean(lines, way, 'test', 'by', hard, 'accuracy'):.1%}" for hard in facts)] for way in names(lines)]
        for words, what in (("steps, mean of all positions", "ponder"), ("steps, at the question", "asked")):
            rows.append([words, *(f"{mean(lines, ACT, 'test', 'by', hard, what):.2f}" for hard in facts)])
        return Table(["supporting facts", *map(str, facts)], rows)

    def panels(self, lines: Lines) -> list[Panel]:
        """Right answers and steps against supporting facts."""
        facts = list(lines[0]["test"]["by"])
        across = [float(hard) for hard in facts]
        right = [Curve(way, across, [mean(lines, way, "test", "by", hard, "accuracy") for hard in facts]) for way in names(lines)]
        steps = [
            Curve(f"{words}, seed {line['seed']}", across, [found[what] for found in line["test"]["by"].values()])
            for line in lines
            if line["way"] == ACT
            for words, what in (("all positions", "ponder"), ("the question", "asked"))
        ]
        return [
            Panel(right, "supporting facts", "share of right answers", scale="linear"),
            Panel(steps, "supporting facts", "steps that halting takes", scale="linear"),
        ]
