"""Pairs of texts, split into parts: a source and its target, or a text and its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from formers.core import FormersError
from formers.data.files import Parts
from formers.data.kinds import HELD_OUT
from formers.data.numbers import NumberPairs, Two
from formers.data.text import held_out

SAMPLE = 100_000
"""Training a tokenizer reads about this many examples at most."""


class Examples(NamedTuple):
    """Sources and targets, or texts and labels, by part, with a one-line description."""

    parts: Parts[Sequence[Two]]
    about: str
    fingerprint: str
    source: str
    labels: tuple[str, ...] | None = None
    """The class names, if the second text is a label."""
    invalid: str = "refuse"

    def texts(self, part: str) -> Iterator[str]:
        """The texts of a part one by one, without labels; for `numbers`, the words that occur."""
        found = self.parts[part]
        return iter(found.words) if isinstance(found, NumberPairs) else self._every(part, 1)

    def sample(self) -> Iterator[str]:
        """The training texts; if there are very many, a sample spread evenly over them."""
        return self._every("train", 1 + len(self.parts["train"]) // SAMPLE)

    def _every(self, part: str, step: int) -> Iterator[str]:
        for place in range(0, len(self.parts[part]), step):
            first, second = self.parts[part][place]
            yield first
            if self.labels is None:
                yield second


def part_by_hash(twos: Sequence[Two], name: str, kind: str) -> dict[str, Sequence[Two]]:
    """Train and valid: the hash of the first text decides, so that no text is in both."""
    held = [held_out(first) for first, _ in twos]
    train, valid = ([two for two, out in zip(twos, held, strict=True) if out == side] for side in (False, True))
    if not train or not valid:
        different = len({first for first, _ in twos})
        how_many = f"{len(twos)} {kind}" + (f", {different} of them different" if different < len(twos) else "")
        raise FormersError(f"{name} has {how_many}, too few to hold out {HELD_OUT:.0%}: give at least a few dozen, or --valid.")
    return {"train": train, "valid": valid}


def describe_split(parts: dict[str, Sequence[Two]], name: str, kind: str) -> str:
    """One line that describes how examples were split."""
    return f"{name}, {len(parts['train']):,} {kind} for training and {len(parts['valid']):,} held out"
