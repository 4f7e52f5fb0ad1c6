"""Prompts from a file or from standard input: a text a line, or JSON records whose other fields come back with the answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formers.data import Tokenizer

FIELDS = ("prompt", "text", "source")
"""The fields of a record that may hold the prompt, in this order; `ids` holds token ids instead."""


@dataclass(frozen=True)
class Prompt:
    """A prompt, as text or as token ids, and the record it came in."""

    text: str | None
    ids: list[int] | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids of the prompt."""
        return tokenizer.encode(self.text or "") if self.ids is None else self.ids


def read_prompts(file: str) -> list[Prompt]:
    """The prompts of a file, or of standard input for "-": records if its name or its first line says so, else a text a line."""
    from formers.data.files import is_records
    from formers.data.records import read_record

    name = "standard input" if file == "-" else file
    lines = [(number, line.removeprefix("\ufeff")) for number, line in _lines(file, name)]  # a mark some editors begin a file with
    if is_records(file) or (file == "-" and lines and lines[0][1].lstrip().startswith("{")):
        return [_prompt(name, number, read_record(name, number, line)) for number, line in lines]
    return [Prompt(line) for _, line in lines]


def _lines(file: str, name: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1."""
    from formers.core import FormersError
    from formers.data.records import lines

    if file == "-":
        text = b"" if sys.stdin is None else sys.stdin.buffer.read()
        # Lines end as in a file: not at every character that `splitlines` knows, some of which may stand in a record.
        every = text.decode("utf-8", errors="replace").split("\n")
        yield from ((number, line.removesuffix("\r")) for number, line in enumerate(every, 1) if line.strip())
    elif not Path(file).is_file():
        raise FormersError(f"{file} is not a file: give a .txt with a prompt a line, a .jsonl with records, or - for standard input.")
    else:
        yield from lines(name, Path(file), "replace")


def _prompt(name: str, number: int, record: dict[str, Any]) -> Prompt:
    from formers.core import FormersError

    ids = record.get("ids")
    if isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return Prompt(None, ids, record)
    for known in FIELDS:
        if isinstance(record.get(known), str):
            return Prompt(record[known], None, record)
    raise FormersError(
        f"{name}, line {number} has no prompt: give a text as {', '.join(map(repr, FIELDS))}, or token ids as 'ids'; "
        f"it has {', '.join(map(repr, record)) or 'nothing'}."
    )
