"""Files, folders and globs as stretches of plain files: compressed ones are unpacked once into the cache."""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from formers.core import FormersError, nearest
from formers.data.cache import CHUNK, Sink, digest, key_of, made
from formers.data.catalogue import OFFERED
from formers.data.progress import Progress

UTF8_MARK = b"\xef\xbb\xbf"
PACKED = (".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")
T = TypeVar("T")


class Parts(dict[str, T]):
    """Values by part (train, valid, test); a missing part raises FormersError."""

    def __init__(self, parts: dict[str, T], name: str = "this data") -> None:
        super().__init__(parts)
        self.name = name

    def __missing__(self, part: str) -> T:
        others = [other for other in self if other != "train"] or list(self)
        raise FormersError(f"{self.name} has no {part} part: use --split {' or '.join(others)}.")


class Lazy(Parts[T]):
    """Parts that are computed on first access, such as token streams: evaluating one part does not tokenise the others."""

    def __init__(self, makers: dict[str, Callable[[], T]], name: str) -> None:
        super().__init__({}, name)
        self.makers = makers

    def __missing__(self, part: str) -> T:
        if part not in self.makers:
            return Parts(dict.fromkeys(self.makers), self.name)[part]  # type: ignore[return-value]  # which raises
        self[part] = self.makers[part]()
        return self[part]

    def __contains__(self, part: object) -> bool:
        return part in self.makers

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)


class Stretch(NamedTuple):
    """Bytes start ... stop of a plain file; `name` is the name that the user gave, `sum` the sha256 of the whole file."""

    name: str
    path: Path
    start: int
    stop: int
    sum: str

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in chunks."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.size
            while left > 0 and (chunk := file.read(min(left, 1 << 16))):
                left -= len(chunk)
                yield chunk

    def cut(self, share: float) -> tuple[Stretch, Stretch]:
        """Splits off the last `share`: two stretches of at least 2 bytes each; no UTF-8 character is cut."""
        place = _between_characters(self, self.stop - max(2, round(self.size * share)))
        return self._replace(stop=place), self._replace(start=place)


def listed(data: str) -> list[tuple[str, Path]]:
    """The files that a path or a glob matches, with names relative to its folder, sorted by name."""
    path = Path(data).expanduser()
    if path.is_file():
        return [(str(data), path)]
    if path.is_dir():
        root, found = path, walk(path)
    elif glob.has_magic(str(data)):
        root = Path(os.path.dirname(re.split(r"[*?[]", str(path), maxsplit=1)[0]))
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    elif path.exists():
        raise FormersError(f"{data} is neither a file nor a folder: give one of these.")
    else:
        hint = nearest(path.name, OFFERED)
        raise FormersError(
            f"{data} does not exist and is not a named data set: give a file, a folder, a glob such as 'texts/*.txt', or a name; {hint}"
        )
    names = [(file.relative_to(root).as_posix(), file) for file in found if file.is_file() and not file.name.startswith(".")]
    if not names:
        raise FormersError(f"no file matches {data}: give a folder that contains files, or a glob that matches some.")
    return sorted(names)


def parallel(data: str) -> list[str]:
    """One file, or two files separated by a comma."""
    if not Path(data).expanduser().exists():
        for place in (i for i, character in enumerate(data) if character == ","):
            two = [data[:place], data[place + 1 :]]
            if all(Path(side).expanduser().is_file() for side in two):
                return two
    return [data]


def resolved(data: str | Path) -> str:
    """The absolute name, which opens the same files from any folder."""
    return ",".join(str(Path(file).expanduser().resolve()) for file in parallel(str(data)))


def one_file(data: str | Path) -> Path:
    """The path of a single file."""
    found = listed(str(data))
    if len(found) > 1 or Path(data).expanduser().is_dir():
        raise FormersError(f"{data} is a folder or a glob: pairs and labelled texts are read from one file.")
    return found[0][1]


def whole(name: str, path: Path) -> Stretch:
    """A whole file, unpacked if needed, without a UTF-8 byte order mark."""
    if path.suffix.lower() in PACKED:
        raise FormersError(f"{name} is compressed: unpack it, or compress it as .gz, which is read directly.")
    plain = unpacked(name, path) if path.name.endswith(".gz") else path
    with reading(name), plain.open("rb") as file:
        start = len(UTF8_MARK) if file.read(len(UTF8_MARK)) == UTF8_MARK else 0
        return Stretch(name, plain, start, plain.stat().st_size, digest(plain))


def unpacked(name: str, path: Path) -> Path:
    """The content of a gzip file, in the cache."""

    def unpack(sink: Sink) -> None:
        try:
            with gzip.open(path) as file, Progress(f"unpacking {path.name}", 0) as progress:
                while chunk := file.read(CHUNK):
                    sink.write(chunk)
                    progress.advance(len(chunk))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FormersError(f"{name} cannot be unpacked ({error}): download it again.") from None

    with reading(name):
        return made("unpacked", key_of("gzip", digest(path)), unpack)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Context in which an unreadable file raises FormersError."""
    try:
        yield
    except OSError as error:
        raise FormersError(f"{name} cannot be read ({error.strerror}): give a file that can.") from None


def suffix(path: str | Path) -> str:
    """The suffix of a file name, without `.gz`."""
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def is_records(path: str | Path) -> bool:
    """Whether the suffix of a file name is one of JSON records."""
    return suffix(path) == ".jsonl"


def walk(root: Path, left_out: set[str] | None = None) -> list[Path]:
    """The files below a folder, without hidden folders and those in `left_out`."""
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in (left_out or ())]
        found += [Path(folder) / name for name in names]
    return found


def _between_characters(stretch: Stretch, place: int) -> int:
    """The byte offset, moved to the beginning or end of a UTF-8 character if it is inside one."""
    before = max(place - 3, stretch.start)
    with stretch.path.open("rb") as file:
        file.seek(before)
        around = file.read(place - before + 3)
    for first in range(before, place):
        character = around[first - before :][: _length(around[first - before])]
        if first + len(character) > place and all(byte >> 6 == 0b10 for byte in character[1:]):
            return next((p for p in (first, first + len(character)) if stretch.start + 2 <= p <= stretch.stop - 2), place)
    return place


def _length(lead: int) -> int:
    """The length of a UTF-8 character by its first byte; 0 for other bytes."""
    return 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
