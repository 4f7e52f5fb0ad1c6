"""Texts in twos, parted: a source and its target, or a text and its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from formers.core import FormersError
from formers.data.files import Parts
from formers.data.kinds import HELD_OUT
from formers.data.numbers import NumberPairs, Two
from formers.data.text import held_out

SAMPLE = 100_000
"""Examples that the training of a tokenizer reads, about, at most."""


class Examples(NamedTuple):
    """Sources and targets, or texts and labels, and what is to be said of them."""

    parts: Parts[Sequence[Two]]
    about: str
    fingerprint: str
    source: str
    labels: tuple[str, ...] | None = None
    """The classes, where the second of two is one."""
    invalid: str = "refuse"

    def texts(self, part: str) -> Iterator[str]:
        """The texts of a part one by one; labels are none, and of numbers the words do."""
        found = self.parts[part]
        return iter(found.words) if isinstance(found, NumberPairs) else self._every(part, 1)

    def sample(self) -> Iterator[str]:
        """The texts to learn from; of very many, some spread evenly over them."""
        return self._every("train", 1 + len(self.parts["train"]) // SAMPLE)

    def _every(self, part: str, step: int) -> Iterator[str]:
        for place in range(0, len(self.parts[part]), step):
            first, second = self.parts[part][place]
            yield first
            if self.labels is None:
                yield second


def part_by_hash(twos: Sequence[Two], name: str, kind: str) -> dict[str, Sequence[Two]]:
    """Train and valid: a first text is held out by its hash, so that none stands on both sides."""
    held = [held_out(first) for first, _ in twos]
    train, valid = ([two for two, out in zip(twos, held, strict=True) if out == side] for side in (False, True))
    if not train or not valid:
        different = len({first for first, _ in twos})
        how_many = f"{len(twos)} {kind}" + (f", {different} of them different" if different < len(twos) else "")
        raise FormersError(f"{name} has {how_many}, too few to hold out {HELD_OUT:.0%}: give at least a few dozen, or --valid.")
    return {"train": train, "valid": valid}


def told(parts: dict[str, Sequence[Two]], name: str, kind: str) -> str:
    """How examples were parted, for people."""
    return f"{name}, {len(parts['train']):,} {kind} to learn from and {len(parts['valid']):,} held out"
