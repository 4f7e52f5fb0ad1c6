"""How much of a part was evaluated, as text; every metric is reported with it."""

from __future__ import annotations

from typing import Any, NamedTuple

from formers.attention import LSH
from formers.evaluation.protocol import same_length
from formers.memory import Recurrence
from formers.model import Spec
from formers.score import Relative


class Coverage(NamedTuple):
    """The amount evaluated, the amount there is, and the unit."""

    done: int
    whole: int
    unit: str

    def __str__(self) -> str:
        return f"all {self.whole:,} {self.unit}" if self.done >= self.whole else f"{self.done:,} of {self.whole:,} {self.unit}"

    def of(self, part: str, sample: int | None, beginning: bool = True) -> str:
        """The same for a protocol: with the part, and whether its beginning or a sample was evaluated."""
        if self.done >= self.whole:
            return f"{self} of {part}"
        share = f"{self.done:,} of the {self.whole:,} {self.unit} of {part}"
        if sample is not None:
            return f"{share}, spread over it"
        return f"the first {share}" if beginning else share


def segment_words(batches: Any, whole: int, size: int, sample: int | None) -> str:
    """How a text is split for a model with a memory: into lanes, or for a sample into stretches."""
    if sample is not None and sample < -(-whole // batches.length):
        stretch = f"stretches of {batches.stretch(sample):,} after {batches.warm:,} that fill the memory"
        return f"segments of {batches.length:,} tokens in {stretch}"
    lanes = min(size, whole)
    width = min(batches.length, -(-whole // lanes))
    return f"segments of {width:,} tokens in {lanes:,} {'lanes' if lanes > 1 else 'lane'}"


def context_words(spec: Spec, continues: bool) -> list[str]:
    """What else limits the context, in words: memory, clamp, and hashing rounds."""
    words = [f"rounds {part.evaluation_rounds or part.rounds}" for part in spec.attention.kinds if isinstance(part, LSH)][:1]
    if continues and isinstance(spec.memory, Recurrence):
        words.append(f"memory {spec.memory.length:,}")
        words += ["same length"] if same_length(spec) else []
    return [*words, f"clamp {spec.score.clamp:,}"] if isinstance(spec.score, Relative) and spec.score.clamp is not None else words
