"""The bottleneck of an encoder-decoder without attention: a word of any length must fit into one state.

Random words of 1 ... `length` symbols are copied by `seq2seq`, an LSTM encoder-decoder: from the encoder's last state only, or with
additive or multiplicative attention over the source. All lengths occur in training. A symbol is predicted from the right ones before
it; a word is right exactly if greedy decoding generates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from formers.core import FormersError
from formers.data.tasks import Copy, DrawnPairs
from formers.data.tasks.batches import tokenizer_of
from formers.experiments.experiment import Experiment, Lines, Table
from formers.experiments.learning import Setup, mean, names
from formers.family import spec
from formers.inspect.draw.curves import Curve, Panel

NONE, ADDITIVE, MULTIPLICATIVE = "none", "additive", "multiplicative"


@dataclass(frozen=True)
class Words(Experiment):
    """The task, the models and their training."""

    steps: int = 1000
    batch: int = 64
    rate: float = 5e-3
    length: int = 40
    symbols: int = 10
    rows: int = 2000
    dim: int = 64
    bucket: int = 5

    name: ClassVar[str] = "bottleneck"
    titles: ClassVar[tuple[str, ...]] = ("alignment", "seed", "parameters", "symbols", "words", "CPU seconds")
    limits: ClassVar[dict[str, tuple[float, float]]] = {
        "attention_longest": (0.95, 1.0),
        "attention_fall": (-0.02, 0.05),
        "none_shortest": (0.9, 1.0),
        "none_longest": (0.0, 0.7),
    }
    """Shares of right symbols, means over the seeds, in the shortest and the longest words: with attention, the lower of both kinds, and
    its largest drop; and without."""

    def setups(self) -> dict[str, Setup]:
        if self.length > self.rows:
            raise FormersError(
                f"length={self.length} is more than rows={self.rows}, so some lengths have no word: give at most {self.rows}."
            )
        words = Copy(length=self.length, test_length=self.length, symbols=self.symbols, rows=self.rows)
        tokenizer = tokenizer_of(words, specials=("begin", "end"))
        batches = DrawnPairs(words, tokenizer)
        sizes: dict[str, Any] = {"vocab": tokenizer.vocab, "dim": self.dim, "length": self.length + 1, "dropout": 0.0}
        return {each: Setup(spec("seq2seq", alignment=each, **sizes), batches, self.training) for each in (NONE, ADDITIVE, MULTIPLICATIVE)}

    def words(self) -> str:
        return (
            f"random words of 1 to {self.length} of {self.symbols} symbols, copied; LSTM, dim={self.dim}, one layer each, the encoder "
            f"in both directions, with input feeding; {self.training.words()}; evaluated on {self.rows:,} held-out words"
        )

    def cells(self, line: dict[str, Any]) -> list[str]:
        found = line["valid"]
        return [
            line["way"], str(line["seed"]), f"{line['parameters']:,}", f"{found['accuracy']:.1%}", f"{found['exact']:.1%}",
            f"{line['seconds']:,.0f}",
        ]  # fmt: skip

    def buckets(self) -> list[range]:
        """Ranges of lengths that are reported together."""
        return [range(start, min(start + self.bucket, self.length + 1)) for start in range(1, self.length + 1, self.bucket)]

    def right(self, lines: Lines, way: str, bucket: range, what: str = "accuracy") -> float:
        """The mean share over the lengths of a range and the seeds."""
        return fmean(mean(lines, way, "valid", "by", length, what) for length in bucket)

    def claims(self, lines: Lines) -> dict[str, float]:
        first, last = self.buckets()[0], self.buckets()[-1]
        looking = [(self.right(lines, way, first), self.right(lines, way, last)) for way in (ADDITIVE, MULTIPLICATIVE)]
        return {
            "attention_longest": min(longest for _, longest in looking),
            "attention_fall": max(shortest - longest for shortest, longest in looking),
            "none_shortest": self.right(lines, NONE, first),
            "none_longest": self.right(lines, NONE, last),
        }

    def further(self, lines: Lines) -> Table:
        """Means over the seeds, by length."""
        rows = [
            [f"{words}, {way}", *(f"{self.right(lines, way, bucket, what):.1%}" for bucket in self.buckets())]
            for words, what in (("symbols", "accuracy"), ("words", "exact"))
            for way in names(lines)
        ]
        return Table(["length", *(f"{bucket[0]}-{bucket[-1]}" for bucket in self.buckets())], rows)

    def panels(self, lines: Lines) -> list[Panel]:
        """Right symbols and words against length."""
        across = [fmean(bucket) for bucket in self.buckets()]
        return [
            Panel(
                [Curve(way, across, [self.right(lines, way, bucket, what) for bucket in self.buckets()]) for way in names(lines)],
                "length", f"share of {words} that are right, mean over the seeds", scale="linear",
            )
            for words, what in (("symbols", "accuracy"), ("words", "exact"))
        ]  # fmt: skip
