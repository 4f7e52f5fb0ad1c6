"""Labelled texts: a .tsv file with two columns, or with a header that has `text` and `label`, or a .jsonl file with these fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from formers.core import FormersError
from formers.data.examples import Examples, describe_split, part_by_hash
from formers.data.files import Parts, is_records, one_file, resolved, suffix, whole
from formers.data.numbers import Two
from formers.data.reading import Reading
from formers.data.records import first_record, lines, records
from formers.data.text import fingerprint

COLUMNS = {
    **dict.fromkeys(("text", "sentence", "review", "content", "document"), "text"),
    **dict.fromkeys(("label", "labels", "class", "category"), "label"),
}
"""Accepted column names of a header."""


def has_label(name: str) -> bool:
    """Whether the first record of a .jsonl file has a label."""
    return "label" in first_record(name, one_file(name))


def open_labelled(data: str | Path, reading: Reading = Reading(), labels: tuple[str, ...] | None = None) -> Examples:
    """The texts and labels of a file, split by the hash of the text, with every class in the training part.

    The classes are the labels that occur, sorted, or `labels`, which must contain all of them.
    """
    name = str(data)
    if not Path(name).expanduser().is_file() or not (suffix(name) == ".tsv" or (is_records(name) and has_label(name))):
        raise FormersError(
            f"{name} has no labels: give a .tsv file with text, tab, label a line, or a .jsonl file with the fields text and label."
        )
    texts = list(_read(name, reading, labels))
    sums = [whole(name, one_file(name)).sum]
    if reading.valid is None:
        parts = _with_every_class(part_by_hash(texts, name, "labelled texts"), name)
        about = describe_split(parts, name, "labelled texts")
    else:
        parts = {"train": texts, "valid": list(_read(reading.valid, reading, labels or tuple({label for _, label in texts})))}
        sums.append(whole(reading.valid, one_file(reading.valid)).sum)
        about = f"{name}, {len(texts):,} labelled texts for training; held out: {reading.valid}, {len(parts['valid']):,}"
    classes = labels or tuple(sorted({label for _, label in parts["train"]}))
    if len(classes) < 2:
        raise FormersError(f"{name} has only one label, {classes[0]!r}: a classifier needs at least two.")
    for part, found in parts.items():
        strange = sorted({label for _, label in found} - set(classes))
        if strange:
            where = reading.valid if part == "valid" and reading.valid is not None else name
            raise FormersError(f"{where} has the label {strange[0]!r}, which training does not know: it knows {', '.join(classes)}.")
    about += f"; {len(classes)} classes: {', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}"
    facts = fingerprint(sums, "held out by hash" if reading.valid is None else "given")
    return Examples(Parts(parts, name), about, facts, resolved(name), labels=classes, invalid=reading.invalid)


def _read(name: str, reading: Reading, known: tuple[str, ...] | None) -> Iterator[Two]:
    """The texts of a file with their labels; `known` are labels given beforehand."""
    for number, text, label in _records(name, reading) if is_records(name) else _table(name, reading.invalid, known or ()):
        if not text.strip() or not label.strip():
            what = "text" if not text.strip() else "label"
            raise FormersError(f"{name}, line {number} has an empty {what}: fill it, or remove the line.")
        yield text, label.strip()


def _records(name: str, reading: Reading) -> Iterator[tuple[int, str, str]]:
    for number, (text, label) in records(name, one_file(name), (reading.field, "label"), reading.invalid):
        yield number, text, label


def _table(name: str, invalid: str, known: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """The rows of a .tsv file. A header names the columns; without one, the label is the column with fewer distinct values.

    If labels are given, it is the column that contains more of them.
    """
    rows = [(number, line.split("\t")) for number, line in lines(name, one_file(name), invalid)]
    header = [COLUMNS.get(cell.strip().lower(), cell) for cell in rows[0][1]] if rows else []
    if {"text", "label"} <= set(header):
        rows, columns = rows[1:], (header.index("text"), header.index("label"))
        width = len(header)
    else:
        width = 2
    for number, cells in rows:
        if len(cells) != width:
            raise FormersError(
                f"{name}, line {number} has {len(cells)} cells, not {width}: write a text, a tab and a label a line, or a first line "
                "that names the columns, text and label among them."
            )
    if width == 2 and not {"text", "label"} <= set(header):
        different = [len({cells[column] for _, cells in rows}) for column in (0, 1)]
        if known:
            different = [sum(cells[column].strip() not in known for _, cells in rows) for column in (0, 1)]
        columns = (1, 0) if different[0] < different[1] else (0, 1)
    for number, cells in rows:
        yield number, cells[columns[0]], cells[columns[1]]


def _with_every_class(parts: dict[str, Sequence[Two]], name: str) -> dict[str, Sequence[Two]]:
    """The parts, with texts moved to training if all texts of their class were held out."""
    lost = {label for _, label in parts["valid"]} - {label for _, label in parts["train"]}
    moved = {text for text, label in parts["valid"] if label in lost}
    train = [*parts["train"], *(two for two in parts["valid"] if two[0] in moved)]
    valid = [two for two in parts["valid"] if two[0] not in moved]
    if not valid:
        raise FormersError(f"{name} has too few texts of the label {min(lost)!r} to hold one out: give more, or --valid.")
    return {"train": train, "valid": valid}
