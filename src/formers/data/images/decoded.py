"""The decoded images of a folder, all of one size: computed once, then read from the cache.

The cache key is computed from the names and contents of the files and the requested size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError
from formers.data.cache import Sink, key_of, made
from formers.data.files import reading
from formers.data.images.pillow import BadFile, pillow, read_image
from formers.data.progress import Progress

FIRST = 3
"""Number of names shown of a longer list."""
VERSION = 1
"""Version of the decoder; increased when a file would be decoded to other values."""


class Decoded(NamedTuple):
    """The images uint8 (n, height, width, channels) of files, the names of these, and what could not be read."""

    images: Tensor
    names: tuple[str, ...]
    bad: tuple[str, ...]
    """Each with the reason."""
    sums: list[tuple[str, str]]
    """The name and the sha256 of each file that could be read."""


def decoded(name: str, files: Mapping[str, Path], size: tuple[int, int] | None, skip_bad: bool) -> Decoded:
    """The files as images of one size: the one that is given, or the one that all have."""
    pillow(f"reading the images of {name}")
    sums = _sums(name, files)
    key = key_of("images", VERSION, sums, size, skip_bad)
    path = made("images", key, lambda sink: _write(name, files, size, skip_bad, sink))
    with path.open("rb") as file:
        head = json.loads(file.readline())
        images = np.frombuffer(bytearray(file.read()), np.uint8).reshape(head["shape"])  # bytearray: torch requires writable memory
    good = set(head["names"])
    return Decoded(torch.from_numpy(images), tuple(head["names"]), tuple(head["bad"]), [two for two in sums if two[0] in good])


def shown_names(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    more = len(names) - FIRST
    return ", ".join(names[:FIRST]) + (f" and {more:,} more" if more > 0 else "")


def _sums(name: str, files: Mapping[str, Path]) -> list[tuple[str, str]]:
    found = []
    with reading(name), Progress(f"checking {name}", sum(path.stat().st_size for path in files.values())) as progress:
        for file, path in files.items():
            content = b""
            with suppress(OSError):  # what cannot be read is reported with the other bad files
                content = path.read_bytes()
            found.append((file, hashlib.sha256(content).hexdigest()))
            progress.advance(len(content))
    return found


def _write(name: str, files: Mapping[str, Path], size: tuple[int, int] | None, skip_bad: bool, sink: Sink) -> None:
    """Writes a line of JSON (names, bad files, shape), and the bytes of the images."""
    images, bad = _decode(name, files, size)
    if bad and not skip_bad:
        raise FormersError(
            f"{name} has {len(bad):,} of {len(files):,} files that cannot be read: {shown_names(bad)}; repair or remove them, or leave "
            "them out with --set skip_bad=true."
        )
    if not images:
        raise FormersError(f"{name} has no file that can be read: {shown_names(bad)}; give other files.")
    channels = max(image.shape[2] for image in images.values())
    height, width, _ = next(iter(images.values())).shape
    head = {"names": list(images), "bad": bad, "shape": [len(images), height, width, channels]}
    sink.write(json.dumps(head).encode() + b"\n")
    for image in images.values():
        sink.write(np.ascontiguousarray(np.broadcast_to(image, (height, width, channels))).tobytes())


def _decode(name: str, files: Mapping[str, Path], size: tuple[int, int] | None) -> tuple[dict[str, NDArray[np.uint8]], list[str]]:
    """The images by name, all of one size, and the files that are none, each with the reason."""
    images: dict[str, NDArray[np.uint8]] = {}
    bad: list[str] = []
    with Progress(f"reading the images of {name}", sum(path.stat().st_size for path in files.values())) as progress:
        for file, path in files.items():
            try:
                images[file] = read_image(path, size)
            except BadFile as error:
                bad.append(f"{file} ({error})")
            else:
                _refuse_other_size(name, images, file)
            progress.advance(path.stat().st_size)
    return images, bad


def _refuse_other_size(name: str, images: Mapping[str, NDArray[np.uint8]], file: str) -> None:
    first = next(iter(images))
    (height, width, _), (other_height, other_width, _) = images[first].shape, images[file].shape
    if (height, width) != (other_height, other_width):
        raise FormersError(
            f"{name} has images of different sizes, {first} ({height} x {width}) and {file} ({other_height} x {other_width}): give "
            "height and width, to which all are resized and cropped."
        )
