"""Addition with more digits than in training: one shared block compared with separate layers, with and without random positions.

Models are trained on columns of 1 ... `digits` digits and evaluated on `test` digits (data/tasks/columns.py). None is causal.

universal     `universal-transformer`: one block, `depth` steps, coordinates added at each
one layer     `encoder` of one layer: as wide, as many parameters, a `depth`-th of the computation
narrow        `encoder` of `depth` layers of half the width: about as many parameters if depth is 4, a quarter of the computation
deep          `encoder` of `depth` layers: as wide, as much computation, `depth` times the parameters in its blocks

"offsets": a row starts at a random position in training, so that the positions of longer rows are trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from formers.data.tasks import Columns, DrawnVectors
from formers.experiments.experiment import Experiment, Lines, Table
from formers.experiments.learning import Setup, mean, names
from formers.family import spec
from formers.heads import Tag
from formers.inspect.draw.curves import Curve, Panel
from formers.model import Spec

UNIVERSAL, ONE, NARROW, DEEP = "universal", "one layer", "narrow", "deep"


@dataclass(frozen=True)
class Sums(Experiment):
    """The task, the models and their training."""

    steps: int = 1800
    batch: int = 64
    rate: float = 3e-3
    digits: int = 12
    test: int = 20
    nines: float = 0.5
    rows: int = 1200
    dim: int = 64
    heads: int = 4
    depth: int = 4
    offset: int = 12

    name: ClassVar[str] = "addition"
    parts: ClassVar[tuple[str, ...]] = ("valid", "test")
    titles: ClassVar[tuple[str, ...]] = ("model", "seed", "parameters", "digits", "sums", "digits, longer", "sums, longer", "CPU seconds")
    limits: ClassVar[dict[str, tuple[float, float]]] = {
        "universal_digits": (0.9, 1.0),
        "gain_vanilla": (0.1, 1.0),
        "gain_digits": (0.005, 1.0),
        "gain_sums": (0.05, 1.0),
        "gain_of_offsets": (0.1, 1.0),
    }
    """Means over the seeds, on the longer sums: the share of right digits of the universal transformer with offsets; its gain over one
    layer without offsets, the vanilla transformer, in digits; over one layer with offsets, in digits and in whole sums; and over itself
    without offsets, in digits."""

    def setups(self) -> dict[str, Setup]:
        batches = DrawnVectors(Columns(digits=self.digits, test_digits=self.test, nines=self.nines, rows=self.rows))
        specs = {
            f"{UNIVERSAL}, offsets": self.spec("universal-transformer", self.depth, self.offset),
            UNIVERSAL: self.spec("universal-transformer", self.depth, 0),
            f"{ONE}, offsets": self.spec("encoder", 1, self.offset),
            ONE: self.spec("encoder", 1, 0),
            f"{NARROW}, offsets": self.spec("encoder", self.depth, self.offset, self.dim // 2),
            f"{DEEP}, offsets": self.spec("encoder", self.depth, self.offset),
        }
        return {name: Setup(each, batches, self.training) for name, each in specs.items()}

    def spec(self, member: str, depth: int, offset: int, dim: int = 0) -> Spec:
        """An encoder that predicts a digit at every column."""
        layers: dict[str, Any] = {"steps" if member == "universal-transformer" else "layers": depth}
        sizes: dict[str, Any] = {"dim": dim or self.dim, "heads": self.heads, "length": self.test + 1, "dropout": 0.0}
        found = spec(member, features=20, classes=10, offset=offset, norm="pre", activation="relu", **layers, **sizes)
        return found.replace(head=Tag(classes=10))

    def words(self) -> str:
        return (
            f"trained on columns of 1 to {self.digits} digits, evaluated on {self.test}, {self.nines:.0%} of them made to add up to 9; "
            f"dim={self.dim}, {self.heads} heads, depth {self.depth}, pre-norm, offsets up to {self.offset}; "
            f"{self.training.words()}; evaluated on {self.rows:,} rows of each"
        )

    def cells(self, line: dict[str, Any]) -> list[str]:
        right = [f"{line[part][name]:.1%}" for part in ("valid", "test") for name in ("accuracy", "exact")]
        return [line["way"], str(line["seed"]), f"{line['parameters']:,}", *right, f"{line['seconds']:,.0f}"]

    def claims(self, lines: Lines) -> dict[str, float]:
        best = f"{UNIVERSAL}, offsets"
        digits, sums = (mean(lines, best, "test", name) for name in ("accuracy", "exact"))
        return {
            "universal_digits": digits,
            "gain_vanilla": digits - mean(lines, ONE, "test", "accuracy"),
            "gain_digits": digits - mean(lines, f"{ONE}, offsets", "test", "accuracy"),
            "gain_sums": sums - mean(lines, f"{ONE}, offsets", "test", "exact"),
            "gain_of_offsets": digits - mean(lines, UNIVERSAL, "test", "accuracy"),
        }

    def further(self, lines: Lines) -> Table:
        """Means over the seeds, on the longer sums."""
        rows = [[way, *(f"{mean(lines, way, 'test', name):.1%}" for name in ("accuracy", "exact"))] for way in names(lines)]
        return Table([f"mean over the seeds, {self.test} digits", "digits", "sums"], rows)

    def panels(self, lines: Lines) -> list[Panel]:
        """The shares of right digits by length, and the losses."""
        parts = [(part, size) for part in self.parts for size in lines[0][part]["by"]]
        across = [float(size) for _, size in parts]
        right = [Curve(way, across, [mean(lines, way, part, "by", size, "accuracy") for part, size in parts]) for way in names(lines)]
        losses = [
            Curve(line["way"], [step for step, _ in line["losses"]], [loss for _, loss in line["losses"]])
            for line in lines
            if line["seed"] == 0
        ]
        return [
            Panel(right, "digits", "share of digits that are right, mean over the seeds", scale="linear"),
            Panel(losses, "training step", "loss, nats per digit, seed 0", scale="linear"),
        ]
