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
    """What belongs to train, valid and test; a part that is not there is refused in one sentence."""

    def __init__(self, parts: dict[str, T], name: str = "this data") -> None:
        super().__init__(parts)
        self.name = name

    def __missing__(self, part: str) -> T:
        others = [other for other in self if other != "train"] or list(self)
        raise FormersError(f"{self.name} has no {part} part: use --split {' or '.join(others)}.")


class Lazy(Parts[T]):
    """Parts that are made when they are first asked for, such as token streams: who judges one part need not tokenise the others."""

    def __init__(self, makers: dict[str, Callable[[], T]], name: str) -> None:
        super().__init__({}, name)
        self.makers = makers

    def __missing__(self, part: str) -> T:
        if part not in self.makers:
            return Parts(dict.fromkeys(self.makers), self.name)[part]  # type: ignore[return-value]  # which refuses
        self[part] = self.makers[part]()
        return self[part]

    def __contains__(self, part: object) -> bool:
        return part in self.makers

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)


class Stretch(NamedTuple):
    """Bytes start ... stop of a plain file; `name` is what its user calls it, `sum` the sha256 of the whole file."""

    name: str
    path: Path
    start: int
    stop: int
    sum: str

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.size
            while left > 0 and (chunk := file.read(min(left, 1 << 16))):
                left -= len(chunk)
                yield chunk

    def cut(self, share: float) -> tuple[Stretch, Stretch]:
        """The beginning, and the last `share` of it: at least 2 bytes each, and no character is cut in two."""
        place = _between_characters(self, self.stop - max(2, round(self.size * share)))
        return self._replace(stop=place), self._replace(start=place)


def listed(data: str) -> list[tuple[str, Path]]:
    """The files that a path or a glob stands for, with names relative to its folder, in the order of these."""
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
            f"{data} is not there and names no data set: give a file, a folder, a glob such as 'texts/*.txt', or a name; {hint}"
        )
    names = [(file.relative_to(root).as_posix(), file) for file in found if file.is_file() and not file.name.startswith(".")]
    if not names:
        raise FormersError(f"no file fits {data}: give a folder with files in it, or a glob that finds some.")
    return sorted(names)


def parallel(data: str) -> list[str]:
    """One file, or the two that are written with a comma between them."""
    if not Path(data).expanduser().exists():
        for place in (i for i, character in enumerate(data) if character == ","):
            two = [data[:place], data[place + 1 :]]
            if all(Path(side).expanduser().is_file() for side in two):
                return two
    return [data]


def resolved(data: str | Path) -> str:
    """What opens the same files from any folder."""
    return ",".join(str(Path(file).expanduser().resolve()) for file in parallel(str(data)))


def one_file(data: str | Path) -> Path:
    """The one file of a name."""
    found = listed(str(data))
    if len(found) > 1 or Path(data).expanduser().is_dir():
        raise FormersError(f"{data} is a folder or a glob: pairs and labelled texts are read from one file.")
    return found[0][1]


def whole(name: str, path: Path) -> Stretch:
    """All of a file, unpacked if need be, without the mark that some programs put before UTF-8."""
    if path.suffix.lower() in PACKED:
        raise FormersError(f"{name} is packed: unpack it, or pack it as .gz, which is read as it is.")
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
            raise FormersError(f"{name} cannot be unpacked ({error}): take it from its source again.") from None

    with reading(name):
        return made("unpacked", key_of("gzip", digest(path)), unpack)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Inside, a file that cannot be read is refused in one sentence."""
    try:
        yield
    except OSError as error:
        raise FormersError(f"{name} cannot be read ({error.strerror}): give a file that can.") from None


def suffix(path: str | Path) -> str:
    """What a file's name ends in, `.gz` left aside."""
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def is_records(path: str | Path) -> bool:
    """Whether a file's name says that it holds JSON records."""
    return suffix(path) == ".jsonl"


def walk(root: Path, left_out: set[str] | None = None) -> list[Path]:
    """The files of a folder and its folders, without hidden folders and those left out."""
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in (left_out or ())]
        found += [Path(folder) / name for name in names]
    return found


def _between_characters(stretch: Stretch, place: int) -> int:
    """The place, or if it stands inside a UTF-8 character, that character's beginning or end."""
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
    """The length that a UTF-8 character's first byte announces; 0 for other bytes."""
    return 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
