"""Finds files that are not UTF-8 text: binary data, UTF-16, Latin-1. Files with the mark of UTF-16 or UTF-32 are decoded."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from formers.data.cache import CHUNK, Sink, key_of, made
from formers.data.files import Stretch, unpacked, whole
from formers.data.records import HANDLERS, WIDE_MARKS

SCANNED = 1 << 24
"""How many bytes of a file are looked at, from its beginning."""
MAGIC = {
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image", b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive", b"\x7fELF": "a program", b"SQLite format 3": "a database",
}  # fmt: skip
"""What files begin with that are not text."""
CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))
"""Bytes that text does not have."""


class Finding(NamedTuple):
    """What the bytes of a file are instead of UTF-8 text: the kind of finding, and its detail."""

    kind: str
    detail: str


ADVICE = {
    "decoded": "{who} {is} {detail}, and decoded",
    "binary": "{who} {has} binary data ({detail}), trained on as bytes: leave {it} out with a glob such as 'texts/**/*.txt'",
    "UTF-16": "{who} {is} probably UTF-16 without a mark ({detail}), trained on as bytes: convert {it} with `iconv -f {detail} -t UTF-8`",
    "Latin-1": "{who} {is} not UTF-8 ({detail}), probably Latin-1, trained on as bytes: convert {it} with `iconv -f LATIN1 -t UTF-8`",
    "unknown": "{who} {is} not UTF-8 ({detail}), trained on as bytes: convert {it} to UTF-8, or leave {it} out",
}
"""The sentence for each kind of finding."""


def as_utf8(file: Stretch, invalid: str) -> Stretch:
    """A file with the mark of UTF-16 or UTF-32, decoded once into the cache; other files, and what cannot be decoded, as they are."""
    encoding = wide_mark(file.path) if file.start == 0 else None
    if encoding is None:
        return file

    def decode(sink: Sink) -> None:
        decoder = codecs.getincrementaldecoder(encoding)(HANDLERS[invalid])
        with file.path.open("rb") as source:
            while chunk := source.read(CHUNK):
                sink.write(decoder.decode(chunk).encode("utf-8"))
            sink.write(decoder.decode(b"", final=True).encode("utf-8"))

    try:
        plain = made("decoded", key_of(encoding, file.sum, invalid), decode)
    except UnicodeError:
        return file
    return whole(file.name, plain)


def wide_mark(path: Path) -> str | None:
    """UTF-16 or UTF-32 where a file begins with its mark."""
    with path.open("rb") as file:
        beginning = file.read(4)
    return next((encoding for mark, encoding in WIDE_MARKS.items() if beginning.startswith(mark)), None)


def finding(file: Stretch) -> Finding | None:
    """What the bytes of a file are if not UTF-8 text."""
    with file.path.open("rb") as opened:
        opened.seek(file.start)
        content = opened.read(min(file.size, SCANNED))
    for magic, what in MAGIC.items():
        if file.start == 0 and content.startswith(magic):
            return Finding("binary", what)
    zeros = content.count(0)
    if zeros:
        first, second = (content[side::2].count(0) / max(len(content) // 2, 1) for side in (0, 1))
        if max(first, second) > 0.4 and min(first, second) < 0.1:
            return Finding("UTF-16", "UTF-16LE" if second > first else "UTF-16BE")
        return Finding("binary", f"{zeros:,} zero byte{'s' * (zeros > 1)}")
    control = len(content) - len(content.translate(None, CONTROL))
    if control > 0.05 * len(content):
        return Finding("binary", f"{control:,} control characters")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content, final=len(content) == file.size)
    except UnicodeDecodeError as error:
        place = f"byte 0x{content[error.start]:02X} at {file.start + error.start:,}"
        high = len(content.translate(None, bytes(range(128))))
        return Finding("Latin-1" if high < 0.3 * len(content) else "unknown", place)
    return None


def encoding_notices(files: Sequence[tuple[str, Path]], read: Sequence[Stretch]) -> list[str]:
    """A sentence for each kind of finding among the files: as they were given, and as they are read."""
    found: dict[str, list[tuple[str, str]]] = {}
    paths = dict(files)
    pieces: dict[str, Stretch] = {}
    for piece in read:  # a file that is cut has one in each part
        first = pieces.setdefault(piece.name, piece)
        if first.path == piece.path:
            pieces[piece.name] = first._replace(start=min(first.start, piece.start), stop=max(first.stop, piece.stop))
    for name, stretch in pieces.items():
        what = _decoded(name, paths.get(name), stretch) or finding(stretch)
        if what is not None:
            found.setdefault(what.kind, []).append((name, what.detail))
    return [_sentence(kind, where) for kind, where in found.items()]


def _decoded(name: str, path: Path | None, read: Stretch) -> Finding | None:
    """That a file was decoded: it has a mark, and is read from another place."""
    if path is None:
        return None
    plain = unpacked(name, path) if path.name.endswith(".gz") else path
    encoding = None if plain == read.path else wide_mark(plain)
    return None if encoding is None else Finding("decoded", encoding)


def _sentence(kind: str, where: list[tuple[str, str]]) -> str:
    (name, detail), more = where[0], len(where) - 1
    who = f"{name} and {more:,} other file{'s' * (more > 1)}" if more else name
    words = {"is": "are", "has": "have", "it": "them"} if more else {"is": "is", "has": "has", "it": "it"}
    return ADVICE[kind].format(who=who, detail=detail, **words)
