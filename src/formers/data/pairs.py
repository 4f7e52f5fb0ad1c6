"""Pairs of texts, source and target: a .tsv or .jsonl file, two parallel files `a.en,b.fr`, or a named set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from formers.core import FormersError
from formers.data.catalogue import LANGUAGES, MULTI30K_FILES, MULTI30K_PARTS, NAMES, NUMBERS, PAIRS
from formers.data.download import fetch
from formers.data.examples import Examples, describe_split, part_by_hash
from formers.data.files import Parts, is_records, listed, one_file, parallel, resolved, suffix, whole
from formers.data.numbers import RANGE, Two, number_pairs
from formers.data.reading import Reading
from formers.data.records import first_record, lines, records
from formers.data.text import fingerprint
from formers.data.tokenize import Tokenizer

Pair = tuple[list[int], list[int]]


class Encoded(Sequence[Pair]):
    """Pairs as token ids, encoded on access."""

    def __init__(self, pairs: Sequence[Two], tokenizer: Tokenizer) -> None:
        self.pairs, self.tokenizer = pairs, tokenizer

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> list[Pair]: ...
    def __getitem__(self, place: int | slice) -> Pair | list[Pair]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        source, target = self.pairs[place]
        return self.tokenizer.encode(source), self.tokenizer.encode(target)


def open_pairs(data: str | Path, reading: Reading = Reading(), member: str = "this member") -> Examples:
    """The pairs of `data`, split by the hash of the source, so that no source is in two parts."""
    name = str(data)
    if name == NUMBERS:
        parts = number_pairs()
        about = describe_split(parts, f"{NUMBERS}, the words of 0 ... {RANGE - 1:,} in English and French", "pairs")
        return _with_valid(
            Examples(Parts(parts, name), about, fingerprint(NUMBERS, [list(parts[part][i]) for part in parts for i in range(100)]), name),
            reading,
        )
    if name.split(":")[0] == PAIRS:
        return _with_valid(_multi30k(name), reading)
    files = parallel(name)
    if len(files) == 1 and (name in NAMES or not has_pairs(files[0])):
        raise FormersError(
            f"{member} is trained on pairs and {name!r} has none: give a .tsv file with a pair a line, source, tab, target; a .jsonl file "
            f"with source and target; two parallel files, a.en,b.fr; or {NUMBERS} or {PAIRS}."
        )
    pairs = list(_read(files, reading))
    sums, source = [whole(file, one_file(file)).sum for file in files], resolved(name)
    if reading.valid is not None:
        made = Examples(Parts({"train": pairs}, name), name, fingerprint(sums), source, invalid=reading.invalid)
        return _with_valid(made, reading)
    parts = part_by_hash(pairs, name, "pairs")
    return Examples(
        Parts(parts, name), describe_split(parts, name, "pairs"), fingerprint(sums, "held out by hash"), source, invalid=reading.invalid
    )


def has_pairs(file: str) -> bool:
    """Whether a file is one of pairs: a .tsv, or a .jsonl whose first record has a source and a target."""
    listed(file)  # a missing file is reported first
    return suffix(file) == ".tsv" or (is_records(file) and {"source", "target"} <= first_record(file, one_file(file)).keys())


def _with_valid(data: Examples, reading: Reading) -> Examples:
    """The data with the held-out pairs of `reading.valid`, if given."""
    if reading.valid is None:
        return data
    files = parallel(reading.valid)
    valid = list(_read(files, reading))
    parts = {**data.parts, "valid": valid}
    sums = [whole(file, one_file(file)).sum for file in files]
    return data._replace(
        parts=Parts(parts, data.parts.name),
        about=f"{data.parts.name}, {len(parts['train']):,} pairs for training; held out: {reading.valid}, {len(valid):,} pairs",
        fingerprint=fingerprint(data.fingerprint, sums),
    )


def _read(files: list[str], reading: Reading) -> Iterator[Two]:
    """The pairs of one file or of two parallel ones, each with two sides."""
    for number, source, target in _sides(files, reading.invalid):
        if not source.strip() or not target.strip():
            side = "source" if not source.strip() else "target"
            raise FormersError(f"{','.join(files)}, line {number} has an empty {side}: fill it, or remove the line.")
        yield source, target


def _sides(files: list[str], invalid: str) -> Iterator[tuple[int, str, str]]:
    if len(files) == 2:
        yield from _zipped(files, invalid)
    elif is_records(files[0]):
        for number, (source, target) in records(files[0], one_file(files[0]), ("source", "target"), invalid):
            yield number, source, target
    else:
        for number, line in lines(files[0], one_file(files[0]), invalid):
            cells = line.split("\t")
            if len(cells) != 2:
                raise FormersError(f"{files[0]}, line {number} has {len(cells) - 1} tabs: write one pair a line, as source, tab, target.")
            yield number, cells[0], cells[1]


def _zipped(files: list[str], invalid: str) -> Iterator[tuple[int, str, str]]:
    """The lines of two parallel files, in pairs."""
    left, right = (dict(lines(file, one_file(file), invalid)) for file in files)
    counts = [max(side, default=0) for side in (left, right)]
    if counts[0] != counts[1]:
        raise FormersError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}: parallel files need a line in one for each in the other."
        )
    for number in sorted(left.keys() | right.keys()):
        yield number, left.get(number, ""), right.get(number, "")


def _multi30k(name: str) -> Examples:
    """Multi30k, task 1 (Elliott et al., 2016), from one of its languages to another; split as published."""
    spoken = name.partition(":")[2] or "en-de"
    languages = spoken.split("-")
    if len(languages) != 2 or languages[0] == languages[1] or not set(languages) <= set(LANGUAGES):
        raise FormersError(f"{name} is not a pair of languages that {PAIRS} has: write {PAIRS}:en-de, with two of {', '.join(LANGUAGES)}.")
    parts: dict[str, Sequence[Two]] = {}
    sums: list[str] = []
    for part, file in MULTI30K_PARTS.items():
        names = [f"{file}.{language}" for language in languages]
        paths = [fetch(PAIRS, MULTI30K_FILES[n])[n] for n in names]
        parts[part] = [(a, b) for _, a, b in _zipped([str(path) for path in paths], "refuse")]
        sums += [MULTI30K_FILES[n].files[n] for n in names]
    about = describe_split(parts, f"{PAIRS}, {' to '.join(languages)}, split as published", "pairs")
    return Examples(Parts(parts, name), about, fingerprint(sums), f"{PAIRS}:{spoken}")
