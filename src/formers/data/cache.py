"""The cache folder: files are written under a temporary name and renamed, and checked before they are used.

Each file has a small companion file with its length and sha256. A file that does not match is computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from formers.core import FormersError
from formers.data.progress import Progress

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the cache format; increased when the same key would give a different file."""
CHUNK = 1 << 20
BIG = 1 << 20
"""The checksum of a file with at least this many bytes is cached."""
SETTLED = 2_000_000_000
"""Nanoseconds after which the modification time is trusted to distinguish two contents."""


class Sink(Protocol):
    """The file object that a maker writes to."""

    def write(self, content: bytes, /) -> object:
        """Appends bytes."""
        ...


def cache_folder() -> Path:
    """FORMERS_CACHE, or `formers` in the user's cache folder."""
    if os.environ.get("FORMERS_CACHE"):
        return Path(os.environ["FORMERS_CACHE"]).expanduser()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "formers"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "formers"


def key_of(*facts: Any) -> str:
    """A key computed from some facts and from the cache format."""
    return hashlib.sha256(json.dumps([FORMAT, *facts]).encode()).hexdigest()


def made(folder: str, key: str, make: Callable[[Sink], object]) -> Path:
    """The path of the cached file for a key; if it is missing or damaged, `make` writes it."""
    path = cache_folder() / folder / key
    whole = _whole(path)
    log.debug("%s %s", "using" if whole else "making", path)
    if not whole:
        with written(path) as file:
            summing = Summing(file)
            make(summing)
        remember(path, "sha256", summing.sum)
        with written(_beside(path)) as note:
            note.write(json.dumps({"bytes": summing.size, "sha256": summing.sum}).encode())
    return path


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A cache file open for writing, renamed at the end, so that two writers do not collide and no reader sees a partial file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = beside.open("xb")
    except OSError as error:
        raise FormersError(
            f"the cache folder {cache_folder()} cannot be written ({error.strerror}): set FORMERS_CACHE to a folder that can."
        ) from None
    try:
        with file:
            yield file
        beside.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FormersError(f"the cache folder {cache_folder()} is full: make room, or set FORMERS_CACHE to another folder.") from None
    finally:
        beside.unlink(missing_ok=True)


class Summing:
    """A file object that records the checksum and the size of what was written."""

    def __init__(self, file: Sink, algorithm: str = "sha256") -> None:
        self.file, self.size, self.hash = file, 0, hashlib.new(algorithm)

    def write(self, content: bytes) -> None:
        """Appends bytes."""
        self.file.write(content)
        self.hash.update(content)
        self.size += len(content)

    @property
    def sum(self) -> str:
        """The checksum so far."""
        return self.hash.hexdigest()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file's content; that of a large file is cached until its size or modification time changes."""
    size, changed = path.stat().st_size, path.stat().st_mtime_ns
    if size >= BIG and (known := _recall(path, algorithm)):
        return known
    found = hashlib.new(algorithm)
    with path.open("rb") as file, Progress(f"checking {path.name}", size) as progress:
        while chunk := file.read(CHUNK):
            found.update(chunk)
            progress.advance(len(chunk))
    if size >= BIG and time.time_ns() - changed > SETTLED:
        remember(path, algorithm, found.hexdigest())
    return found.hexdigest()


def remember(path: Path, algorithm: str, value: str) -> None:
    """Caches the checksum of a file; does nothing if the cache cannot be written."""
    with suppress(FormersError, OSError), written(_note(path, algorithm)) as note:
        note.write(json.dumps({"file": _stamp(path), "sum": value}).encode())


def _recall(path: Path, algorithm: str) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(_note(path, algorithm).read_bytes())
        if note["file"] == _stamp(path):
            return str(note["sum"])
    return None


def _note(path: Path, algorithm: str) -> Path:
    return cache_folder() / "sums" / key_of(algorithm, str(path.resolve()))


def _stamp(path: Path) -> list[str | int]:
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def _whole(path: Path) -> bool:
    """Whether a cached file exists and matches its companion file."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads(_beside(path).read_bytes())
        return bool(path.stat().st_size == said["bytes"] and digest(path) == said["sha256"])
    return False


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
