"""A named set's files as plain, verified files on this machine: from FORMERS_DATA, from the cache, or from the network.

FORMERS_DATA is a folder with a folder for each set; it is only read. Unpacked files in it are used in place; all others
are unpacked into the cache. A file whose checksum is not the pinned one is never used.
"""

from __future__ import annotations

import gzip
import http.client
import logging
import lzma
import os
import secrets
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

from formers.core import FormersError
from formers.data.cache import CHUNK, Summing, cache_folder, digest, remember, written
from formers.data.catalogue import Package
from formers.data.progress import Progress

log = logging.getLogger(__name__)

TIMEOUT = 30.0
"""Seconds without data after which a download fails."""


def fetch(name: str, package: Package) -> dict[str, Path]:
    """The verified files of a package of the set `name`, keyed by base name."""
    folder = _given_folder()
    pins = {PurePosixPath(member).name: pin for member, pin in package.files.items()}
    found = {}
    for member, pin in package.files.items():
        file = PurePosixPath(member).name
        given = _given(folder, name, package, file)
        if given is not None and given.name == file:
            found[file] = _verified(given, pin)
        elif _fits(kept := cache_folder() / "sets" / name / file, pin):
            found[file] = kept
        elif given is not None:
            log.info("%s: unpacking %s", name, given)
            found |= _unpack(name, package._replace(files={member: pin}), given, str(given))
    if found.keys() == pins.keys():
        log.info("%s: %s", name, ", ".join(str(path) for path in found.values()))
        return found
    places = [] if folder is None else [folder / (package.folder or name) / packed for packed in package.packed]
    for place in places:
        if place.is_file():
            log.info("%s: unpacking %s", name, place)
            return _unpack(name, package, place, str(place))
    return _download(name, package)


def whereabouts(name: str, package: Package) -> Literal["given", "cached", "download"]:
    """Where `fetch` would take a package from: FORMERS_DATA, the cache or the network. Checks file names only, not checksums."""
    folder = _given_folder()
    files = [PurePosixPath(member).name for member in package.files]
    given = [_given(folder, name, package, file) is not None for file in files]
    if all(there or (cache_folder() / "sets" / name / file).is_file() for there, file in zip(given, files, strict=True)):
        return "given" if all(given) else "cached"
    packed = folder is not None and any((folder / (package.folder or name) / archive).is_file() for archive in package.packed)
    return "given" if packed else "download"


def lying(name: str, package: Package) -> list[str]:
    """The files of a package, by base name, that are in FORMERS_DATA as single files, plain or packed."""
    folder = _given_folder()
    files = [PurePosixPath(member).name for member in package.files]
    return [file for file in files if _given(folder, name, package, file) is not None]


def _given(folder: Path | None, name: str, package: Package, file: str) -> Path | None:
    """The path of a package's file in a data folder, plain or packed by itself; None if it is not there."""
    if folder is None:
        return None
    places = (folder / (package.folder or name) / f"{file}{end}" for end in ("", ".gz", ".xz"))
    return next((place for place in places if place.is_file()), None)


def _given_folder() -> Path | None:
    given = os.environ.get("FORMERS_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise FormersError(f"FORMERS_DATA={given} is not a folder: set it to one that holds a folder for each data set, or unset it.")
    return Path(given).expanduser() if given else None


def _fits(path: Path, pin: str) -> bool:
    algorithm, _, wanted = pin.partition(":")
    return path.is_file() and digest(path, algorithm) == wanted


def _verified(path: Path, pin: str) -> Path:
    if not _fits(path, pin):
        raise FormersError(f"{path} is not the published file: its checksum is not {pin}; replace it with the original, or remove it.")
    return path


def _unpack(name: str, package: Package, archive: Path, origin: str) -> dict[str, Path]:
    """Every file of a package, from its archive into the cache."""
    found = {}
    try:
        for member, source in _opened(archive, list(package.files), origin):
            algorithm, _, wanted = package.files[member].partition(":")
            place = cache_folder() / "sets" / name / PurePosixPath(member).name
            with written(place) as file, Progress(f"unpacking {place.name}", 0) as progress:
                summing = Summing(file, algorithm)
                while chunk := source.read(CHUNK):
                    summing.write(chunk)
                    progress.advance(len(chunk))
                _compare(f"{member} of {origin}", algorithm, summing.sum, wanted)
            remember(place, algorithm, wanted)
            found[place.name] = place
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FormersError(f"{origin} cannot be unpacked ({error}): download it again.") from None
    return found


def _compare(what: str, algorithm: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise FormersError(f"{what} has the {algorithm} {found}, not the published {wanted}, and was not saved: use another source.")


def _opened(archive: Path, members: list[str], origin: str) -> Iterator[tuple[str, IO[bytes] | gzip.GzipFile | lzma.LZMAFile]]:
    """The members of an archive, by their exact names, each opened in turn; a gzip or xz file has one member, any other file is its own."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(archive) as zipped:
            _refuse_lacking(members, zipped.namelist(), origin)
            for member in members:
                with zipped.open(member) as inside:
                    yield member, inside
    elif magic[:2] == b"\x1f\x8b" and archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as taped:
            there = [entry.name for entry in taped.getmembers() if entry.isfile()]
            _refuse_lacking(members, there, origin)
            for member in sorted(members, key=there.index):  # seeking back in a tar file would unpack it from its beginning again
                found = taped.extractfile(member)
                assert found is not None
                with found:
                    yield member, found
    elif magic == b"\xfd7zXZ\x00":
        with lzma.open(archive) as pressed:
            yield members[0], pressed
    elif magic[:2] == b"\x1f\x8b":
        with gzip.open(archive) as inside:
            yield members[0], inside
    else:
        with archive.open("rb") as plain:
            yield members[0], plain


def _refuse_lacking(members: list[str], there: list[str], origin: str) -> None:
    for member in members:
        if member not in there:
            raise FormersError(f"{origin} has no {member}: download it again.")


def _download(name: str, package: Package) -> dict[str, Path]:
    """The files of a package from the first of its addresses that answers."""
    reason = "no address"
    for url in package.urls:
        log.info("%s: downloading %s", name, url)
        place = cache_folder() / "downloads" / f"{secrets.token_hex(4)}-{PurePosixPath(url).name}"
        try:
            with written(place) as file:
                found = _receive(url, file)
        except (OSError, http.client.HTTPException) as error:
            reason = f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            continue
        try:
            if package.sum is not None:
                _compare(url, "sha256", found, package.sum.removeprefix("sha256:"))
            return _unpack(name, package, place, url)
        finally:
            place.unlink(missing_ok=True)
    wanted = package.packed[0] if package.packed else PurePosixPath(package.urls[0]).name
    raise FormersError(f"{name} cannot be downloaded ({reason}): go online, or set FORMERS_DATA to a folder that contains {name}/{wanted}.")


def _receive(url: str, file: BinaryIO) -> str:
    """Writes the response of an address to a file and returns its sha256."""
    request = urllib.request.Request(url, headers={"User-Agent": "formers"})  # some servers reject Python's default user agent
    summing = Summing(file)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        with Progress(f"downloading {PurePosixPath(url).name}", total) as progress:
            while chunk := answer.read(CHUNK):
                summing.write(chunk)
                progress.advance(len(chunk))
    if total and summing.size != total:
        raise OSError(f"the connection broke after {summing.size:,} of {total:,} bytes")
    return summing.sum
