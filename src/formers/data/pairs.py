"""Pairs of texts, one a line, source and target parted by a tab."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from formers.core import FormersError
from formers.data.text import HELD_OUT, held_out, read_bytes
from formers.data.tokenize import Tokenizer

Pair = tuple[list[int], list[int]]


class PairedText(NamedTuple):
    """Pairs to learn from and pairs to judge by, as token ids, and how they were parted."""

    train: list[Pair]
    valid: list[Pair]
    about: str


def read_pairs(path: str | Path, tokenizer: Tokenizer) -> PairedText:
    """The pairs of a tab-separated file; a source is held out by its hash, so that no source stands on both sides."""
    pairs: dict[bool, list[Pair]] = {True: [], False: []}
    try:
        lines = read_bytes(Path(path)).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FormersError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8.") from None
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if not line.strip():
            continue
        if len(cells) != 2:
            raise FormersError(f"{path}, line {number} has {len(cells) - 1} tabs: write one pair a line, as source, tab, target.")
        pairs[held_out(cells[0])].append((tokenizer.encode(cells[0]), tokenizer.encode(cells[1])))
    if not pairs[False] or not pairs[True]:
        raise FormersError(
            f"{path} has {len(pairs[False]) + len(pairs[True])} pairs, too few to hold out {HELD_OUT:.0%}: give at least a few dozen."
        )
    return PairedText(pairs[False], pairs[True], f"{path}, {len(pairs[False]):,} pairs to learn from and {len(pairs[True]):,} held out")
