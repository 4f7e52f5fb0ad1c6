"""How much of a part was evaluated, in words: a figure means little without it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Extent(NamedTuple):
    """How much was evaluated, of how much there is, and in what it is counted."""

    done: int
    whole: int
    unit: str

    def __str__(self) -> str:
        return f"all {self.whole:,} {self.unit}" if self.done >= self.whole else f"{self.done:,} of {self.whole:,} {self.unit}"

    def of(self, part: str, sample: int | None, beginning: bool = True) -> str:
        """The same in the words of a protocol: of which part, and whether it is the beginning or a sample of it."""
        if self.done >= self.whole:
            return f"{self} of {part}"
        share = f"{self.done:,} of the {self.whole:,} {self.unit} of {part}"
        if sample is not None:
            return f"{share}, spread over it"
        return f"the first {share}" if beginning else share


def ways(batches: Any, whole: int, size: int, sample: int | None) -> str:
    """How a text is cut for a model with a memory: in lanes, or a sample of it in stretches."""
    if sample is not None and sample < -(-whole // batches.length):
        stretch = f"stretches of {batches.stretch(sample):,} behind {batches.warm:,} that fill the memory"
        return f"segments of {batches.length:,} tokens in {stretch}"
    lanes = min(size, whole)
    width = min(batches.length, -(-whole // lanes))
    return f"segments of {width:,} tokens in {lanes:,} {'lanes' if lanes > 1 else 'lane'}"
