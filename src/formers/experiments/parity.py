"""Parity of a vector (Graves, 2016, section 3.1): recurrent networks with one, a fixed number, or an adaptive number of steps.

x (size,)      1 ... bits of its entries, anywhere, are +1 or -1, the others 0; target: whether the number of +1 is odd

Four recurrent networks of one width, all `act-rnn`: one with adaptive halting, one with one step, one that always takes `few`
steps, fewer than the mean of the first, and one that always takes the maximum. The last two separate the gain
of more computation from that of halting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from formers.data.tasks import DrawnVectors, ParityVectors
from formers.experiments.experiment import Experiment, Lines, Table
from formers.experiments.learning import Setup, mean, middle, names, of
from formers.family import spec
from formers.inspect.draw.curves import Curve, Panel
from formers.model import Spec

ACT, PLAIN = "act", "one step"


@dataclass(frozen=True)
class Bits(Experiment):
    """The task, the models and their training."""

    steps: int = 6000
    batch: int = 256
    rate: float = 2e-3
    size: int = 16
    bits: int = 8
    rows: int = 4000
    dim: int = 128
    most: int = 20
    few: int = 4
    ponder: float = 0.001
    bias: float = -1.0

    name: ClassVar[str] = "parity"
    titles: ClassVar[tuple[str, ...]] = ("model", "seed", "error", "steps", "correlation", "CPU seconds")
    limits: ClassVar[dict[str, tuple[float, float]]] = {
        "act_error": (0.0, 0.01),
        "plain_error": (0.25, 0.6),
        "correlation": (0.2, 1.0),
        "ponder_growth": (0.5, 20.0),
    }
    """Medians over the seeds: the error of halting, its correlation of bits and steps, and how many more steps the most bits take
    than one bit; and the lowest error of the one-step network."""

    def setups(self) -> dict[str, Setup]:
        batches = DrawnVectors(ParityVectors(size=self.size, bits=self.bits, test_bits=self.bits, rows=self.rows))
        specs = {
            ACT: self.spec(self.most, "graves"),
            PLAIN: self.spec(1, "none"),
            f"always {self.few}": self.spec(self.few, "none"),
            f"always {self.most}": self.spec(self.most, "none"),
        }
        return {name: Setup(each, batches, self.training) for name, each in specs.items()}

    def spec(self, steps: int, act: str) -> Spec:
        """A tanh network that reads the vector in one step."""
        halts: dict[str, Any] = {} if act == "none" else {"ponder": self.ponder, "halt_bias": self.bias}
        return spec("act-rnn", features=self.size, classes=2, dim=self.dim, length=1, steps=steps, act=act, **halts)

    def words(self) -> str:
        return (
            f"1 to {self.bits} of {self.size} entries; tanh cell, dim={self.dim}, at most {self.most} steps, ponder={self.ponder:g}, "
            f"halt_bias={self.bias:g}; "
            f"{self.training.words()}; evaluated on {self.rows:,} held-out rows"
        )

    def cells(self, line: dict[str, Any]) -> list[str]:
        found = line["valid"]
        halts = [f"{found[name]:.2f}" if name in found else "" for name in ("ponder", "correlation")]
        return [line["way"], str(line["seed"]), f"{1 - found['exact']:.1%}", *halts, f"{line['seconds']:,.0f}"]

    def claims(self, lines: Lines) -> dict[str, float]:
        hardest = max(lines[0]["valid"]["by"])
        growth = [most - one for most, one in zip(*(of(lines, ACT, "valid", "by", bits, "ponder") for bits in (hardest, 1)), strict=True)]
        return {
            "act_error": 1 - middle(lines, ACT, "valid", "exact"),
            "plain_error": 1 - max(of(lines, PLAIN, "valid", "exact")),
            "correlation": middle(lines, ACT, "valid", "correlation"),
            "ponder_growth": sorted(growth)[len(growth) // 2],
        }

    def further(self, lines: Lines) -> Table:
        """By bits: the error of each setup, a mean over the seeds, and the steps of halting."""
        bits = list(lines[0]["valid"]["by"])
        rows = [[f"error, {way}", *(f"{1 - mean(lines, way, 'valid', 'by', hard, 'exact'):.1%}" for hard in bits)] for way in names(lines)]
        for line in lines:
            if line["way"] == ACT:
                rows.append([f"steps, {ACT}, seed {line['seed']}", *(f"{found['ponder']:.2f}" for found in line["valid"]["by"].values())])
        return Table(["bits", *map(str, bits)], rows)

    def panels(self, lines: Lines) -> list[Panel]:
        """Errors and steps against bits."""
        bits = list(lines[0]["valid"]["by"])
        across = [float(hard) for hard in bits]
        errors = [Curve(way, across, [1 - mean(lines, way, "valid", "by", hard, "exact") for hard in bits]) for way in names(lines)]
        steps = [
            Curve(f"seed {line['seed']}", across, [found["ponder"] for found in line["valid"]["by"].values()])
            for line in lines
            if line["way"] == ACT
        ]
        return [
            Panel(errors, "bits", "share of rows that are wrong, mean over the seeds", scale="linear"),
            Panel(steps, "bits", "steps that halting takes", scale="linear"),
        ]
