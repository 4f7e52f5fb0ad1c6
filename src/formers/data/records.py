"""Text decoded from bytes, and files of lines: plain ones, JSON records, and the texts in them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from formers.core import FormersError
from formers.data.files import Stretch, whole

_OFFER = "set invalid=replace or invalid=skip"
HANDLERS = {"refuse": "strict", "replace": "replace", "skip": "ignore"}
WIDE_MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def decoded(stretch: Stretch, invalid: str) -> Iterator[str]:
    """The text of a stretch, in chunks; invalid UTF-8 raises an error, is replaced by U+FFFD, or is skipped."""
    decoder = codecs.getincrementaldecoder("utf-8")(HANDLERS[invalid])
    place = stretch.start
    for chunk in stretch.chunks():
        if place == 0:
            _refuse_wide(stretch.name, chunk)
        yield _decode(decoder, chunk, stretch.name, place)
        place += len(chunk)
    yield _decode(decoder, b"", stretch.name, place)


def lines(name: str, path: Path, invalid: str) -> Iterator[tuple[int, str]]:
    """The non-blank lines of a file, numbered from 1, without line ends."""
    begun, number = [], 0
    for piece in chain(decoded(whole(name, path), invalid), ("\n",)):
        first, *more = piece.split("\n")
        begun.append(first)
        for following in more:
            number, line, begun = number + 1, "".join(begun), [following]
            if line.strip():
                yield number, line.removesuffix("\r")


def records(name: str, path: Path, fields: tuple[str, ...], invalid: str) -> Iterator[tuple[int, list[str]]]:
    """Some fields of the JSON records of a file, one record a line, each as text."""
    for number, line in lines(name, path, invalid):
        record = read_record(name, number, line)
        values = [record.get(field) for field in fields]
        for field, value in zip(fields, values, strict=True):
            if not isinstance(value, str | int):
                raise FormersError(
                    f"{name}, line {number} has no text in the field {field!r}: it has {', '.join(map(repr, record)) or 'none'}; "
                    "name the field that has the text, or fix the line."
                )
        yield number, [_text(name, number, value, invalid) for value in values]


def first_record(name: str, path: Path) -> dict[str, Any]:
    """The first record of a JSON-lines file; empty if there is none."""
    return next((read_record(name, number, line) for number, line in lines(name, path, "replace")), {})


def read_record(name: str, number: int, line: str) -> dict[str, Any]:
    """The JSON object that a line holds."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise FormersError(f'{name}, line {number} is not a JSON object: write one a line, such as {{"text": "..."}}.')
    return record


def _text(name: str, number: int, value: Any, invalid: str) -> str:
    """A field as text; lone surrogates, which JSON can spell and UTF-8 cannot encode, raise or are replaced or skipped."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        if invalid == "refuse":
            raise FormersError(f"{name}, line {number} contains a lone surrogate, {text[error.start]!r}: fix it, or {_OFFER}.") from None
        return text.encode("utf-8", "surrogatepass").decode("utf-8", HANDLERS[invalid])
    return text


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, name: str, place: int) -> str:
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        offset = place + len(chunk) - len(error.object) + error.start
        raise FormersError(f"{name} is not UTF-8 at byte {offset}: save it as UTF-8, use tokens=bytes, or {_OFFER}.") from None


def _refuse_wide(name: str, chunk: bytes) -> None:
    for mark, encoding in WIDE_MARKS.items():
        if chunk.startswith(mark):
            raise FormersError(f"{name} is {encoding}: save it as UTF-8, or use tokens=bytes.")
