"""Named sets of images: digits, mnist, cifar10, and binary versions of MNIST."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from formers.core import FormersError
from formers.data.cache import digest
from formers.data.catalogue import BINARY, DIGITS, DIGITS_FILE, IMAGES, Package
from formers.data.download import fetch, lying
from formers.data.files import reading, unpacked
from formers.data.images.binary import THRESHOLD, threshold_binary
from formers.data.images.formats import READERS, Bytes, read_amat, read_digits, read_idx
from formers.data.images.split import permuted
from formers.data.images.values import BYTE_LEVELS, Binary, ImageSet, Opened

log = logging.getLogger(__name__)

Stretch = tuple[str, int, int]
"""A file, and the first and last-but-one image of it."""
DIGITS_SPLIT = {"train": 1_437, "valid": 180, "test": 180}
DIGITS_LEVELS = 17
STATIC_COUNTS = {"train": 50_000, "valid": 10_000, "test": 10_000}
STATIC_FOLDERS = ("binarized_mnist", "MNIST", "MNIST/raw")
BINARY_NOTES = {
    "static": "the published binary images (Larochelle and Murray, 2011)",
    "threshold": f"1 where the 8-bit value is at least {THRESHOLD}",
    "dynamic": "each pixel is 1 with probability v / 255, drawn anew at each training step",
}


def open_named(name: str) -> Opened:
    """The images of a named set, split as published where a split was published."""
    if name == DIGITS:
        return _open_digits()
    if name not in BINARY:
        return _open_published(name)
    how = BINARY[name]
    return _open_static(name) if how == "static" else _binary(name, how, _open_published("mnist"))


def _open_published(name: str) -> Opened:
    """A set of pinned files, of which FORMERS_DATA may have only some."""
    known = IMAGES[name]
    files = {file: path for package in known.packages for file, path in fetch(name, _available(name, package)).items()}
    sums = {Path(member).name: pin for package in known.packages for member, pin in package.files.items()}
    split = {part: tuple(stretch for stretch in stretches if stretch[0] in files) for part, stretches in known.parts.items()}
    facts = [[part, [[sums[file], start, stop] for file, start, stop in stretches]] for part, stretches in split.items()]
    return Opened(
        name=name,
        makers={part: partial(_read, name, files, stretches) for part, stretches in split.items()},
        counts={part: sum(stop - start for _, start, stop in stretches) for part, stretches in split.items()},
        shape=known.shape,
        levels=BYTE_LEVELS,
        labels=known.classes,
        notes=(),
        facts=["published", facts],
        source=name,
    )


def _available(name: str, package: Package) -> Package:
    """A package without the training files that FORMERS_DATA lacks, if it has the others: those are used as they are, with a warning."""
    given = set(lying(name, package))
    needed = {file for part in ("valid", "test") for file, _, _ in IMAGES[name].parts[part]} & {Path(f).name for f in package.files}
    if not given or not needed <= given or len(given) == len(package.files):
        return package
    log.warning("%s: FORMERS_DATA has %d of its %d files, and only these are used", name, len(given), len(package.files))
    return package._replace(files={member: pin for member, pin in package.files.items() if Path(member).name in given})


def _read(name: str, files: dict[str, Path], stretches: tuple[Stretch, ...]) -> ImageSet:
    """Stretches of the images in files, with their labels."""
    known = IMAGES[name]
    images, labels = [], []
    for file, start, stop in stretches:
        found, numbers = READERS[known.form](files[file])
        if file in known.labels:
            numbers = read_idx(files[known.labels[file]])
        lengths = {len(found)} if numbers is None else {len(found), len(numbers)}
        if found.shape[1:] not in (known.shape, known.shape[:2]) or len(lengths) > 1 or len(found) < stop:
            raise FormersError(f"{name}/{file} holds images {found.shape}, not the published ones: download it again.")
        images.append(found[start:stop].reshape(-1, *known.shape))
        if numbers is not None:
            labels.append(numbers[start:stop])
    return _set(np.concatenate(images), np.concatenate(labels) if labels else None)


def _open_digits() -> Opened:
    """The digits, from FORMERS_DATA if the file is there, else from scikit-learn; both have the same content."""
    images, labels = _digits()
    images = images[..., None]
    rows = dict(zip(DIGITS_SPLIT, permuted(len(images), list(DIGITS_SPLIT.values())), strict=True))
    content = [hashlib.sha256(array.tobytes()).hexdigest() for array in (images, labels)]
    return Opened(
        name=DIGITS,
        makers={part: partial(_set, images[numbers], labels[numbers]) for part, numbers in rows.items()},
        counts={part: len(numbers) for part, numbers in rows.items()},
        shape=(8, 8, 1),
        levels=DIGITS_LEVELS,
        labels=tuple("0123456789"),
        notes=("split by a fixed permutation",),
        facts=["digits", content, DIGITS_SPLIT],
        source=DIGITS,
    )


def _digits() -> tuple[Bytes, Bytes]:
    if lying(DIGITS, DIGITS_FILE):
        return read_digits(fetch(DIGITS, DIGITS_FILE)["digits.csv"])
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise FormersError(
            "digits needs scikit-learn, which holds the images: pip install 'formers[images]', or set FORMERS_DATA to a folder with "
            "digits/digits.csv.gz."
        ) from None
    found: Any = load_digits()
    return found.images.astype(np.uint8), found.target.astype(np.uint8)


def _open_static(name: str) -> Opened:
    """The binary images of Larochelle and Murray, from FORMERS_DATA: there is no published sum to verify a download by."""
    paths = static_files()
    found = {part: path for part, path in paths.items() if path is not None}
    if len(found) < len(paths):
        missing = ", ".join(_static_file(part) for part in paths if part not in found)
        raise FormersError(
            f"{name} needs {missing} in the folder binarized_mnist of FORMERS_DATA: put the files there, or use mnist-dynamic or "
            "mnist-threshold."
        )
    return Opened(
        name=name,
        makers={part: partial(_read_static, path, STATIC_COUNTS[part]) for part, path in found.items()},
        counts=dict(STATIC_COUNTS),
        shape=(28, 28, 1),
        levels=2,
        labels=None,
        notes=(BINARY_NOTES["static"],),
        facts=["static", [[part, digest(path)] for part, path in found.items()]],
        source=name,
        binary="static",
    )


def static_files() -> dict[str, Path | None]:
    """Where the file of each part of mnist-static is in FORMERS_DATA, plain or as .gz; None if it is not there."""
    given = os.environ.get("FORMERS_DATA")
    places = [Path(given).expanduser() / folder for folder in STATIC_FOLDERS] if given else []
    return {part: _first(places, _static_file(part)) for part in STATIC_COUNTS}


def _static_file(part: str) -> str:
    return f"binarized_mnist_{part}.amat"


def _first(places: list[Path], file: str) -> Path | None:
    candidates = (place / f"{file}{end}" for place in places for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _read_static(path: Path, count: int) -> ImageSet:
    with reading(str(path)):
        images = read_amat(unpacked(path.name, path) if path.suffix == ".gz" else path, (28, 28))
    if len(images) != count:
        raise FormersError(f"{path} holds {len(images):,} images, not the published {count:,}: download it again.")
    return _set(images[..., None], None)


def _binary(name: str, how: Binary, grey: Opened) -> Opened:
    """The images of MNIST with two levels; those that are drawn at each step stay as they are until then."""
    makers = grey.makers
    if how == "threshold":
        makers = {part: partial(_threshold, make) for part, make in makers.items()}
    return grey._replace(name=name, makers=makers, levels=2, notes=(BINARY_NOTES[how],), facts=[how, *grey.facts], source=name, binary=how)


def _threshold(make: Callable[[], ImageSet]) -> ImageSet:
    found = make()
    return found._replace(images=threshold_binary(found.images))


def _set(images: Bytes, labels: Bytes | None) -> ImageSet:
    return ImageSet(torch.from_numpy(np.ascontiguousarray(images)), None if labels is None else torch.from_numpy(labels.astype(np.int64)))
