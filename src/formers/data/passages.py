"""Passages whose last word is to be predicted: named sets for testing only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from formers.data.catalogue import SETS
from formers.data.files import Parts
from formers.data.records import records
from formers.data.text import fingerprint, named_files


class Passages(NamedTuple):
    """Passages by part."""

    parts: Parts[list[str]]
    about: str
    fingerprint: str
    source: str


def open_passages(data: str | Path) -> Passages:
    """The passages of a named set, split as published."""
    name = str(data)
    files, sums = named_files(name)
    parts = {
        part: [text for _, (text,) in records(f"{name}/{file}", files[file], ("text",), "refuse")]
        for part, (file, _, _) in SETS[name].parts.items()
    }
    counts = ", ".join(f"{len(texts):,} passages of {part}" for part, texts in parts.items())
    return Passages(Parts(parts, name), f"{name}, {counts}, as published", fingerprint(sorted(sums.values())), name)
