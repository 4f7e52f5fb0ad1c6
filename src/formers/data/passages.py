"""Passages whose last word is to be told: named sets for testing only."""

from __future__ import annotations

from pathlib import Path

from formers.data.catalogue import SETS
from formers.data.files import Parts
from formers.data.records import records
from formers.data.text import fingerprint, named_files


def has_passages(data: str | Path) -> bool:
    """Whether `data` names a set of passages."""
    return str(data) in SETS and SETS[str(data)].kind == "passages"


def open_passages(data: str | Path) -> tuple[Parts[list[str]], str, str]:
    """The passages of a named set by part, how they were parted, and their fingerprint."""
    name = str(data)
    files, sums = named_files(name)
    parts = {
        part: [text for _, (text,) in records(f"{name}/{file}", files[file], ("text",), "refuse")]
        for part, (file, _, _) in SETS[name].parts.items()
    }
    counts = ", ".join(f"{len(texts):,} passages of {part}" for part, texts in parts.items())
    return Parts(parts, name), f"{name}, {counts}, as published", fingerprint(sorted(sums.values()))
