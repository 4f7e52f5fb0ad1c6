"""Images as rows of bytes: row by row, pixel by pixel, channel by channel (Child et al., 2019, section 7.1).

Two formats are read, both of plain bytes. IDX (MNIST): two zeros, 8 for bytes, the number of dimensions, these as big-endian integers,
the bytes. CIFAR's binary one: records of a label and three planes of 32 x 32, which become channels of a pixel here. Nothing is unpickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError
from formers.data.catalogue import IMAGES, Package
from formers.data.download import fetch, lying
from formers.data.files import Lazy, Parts
from formers.data.text import fingerprint

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]


class Pictures(NamedTuple):
    """Images by part, uint8 (images, height * width * channels), and what is to be said of them."""

    parts: Parts[Tensor]
    shape: tuple[int, int, int]
    """Height, width, channels."""
    about: str
    fingerprint: str
    source: str

    @property
    def cells(self) -> int:
        """The bytes of an image."""
        height, width, channels = self.shape
        return height * width * channels


def has_pictures(data: str | Path) -> bool:
    """Whether `data` names a set of images."""
    return str(data) in IMAGES


def open_pictures(data: str | Path) -> Pictures:
    """The images of a named set, parted as published; what is held out is a fixed stretch of those to learn from."""
    name = str(data)
    known = IMAGES[name]
    files = {file: path for package in known.packages for file, path in fetch(name, _there(name, package)).items()}
    sums = {Path(member).name: pin for package in known.packages for member, pin in package.files.items()}
    split = {part: tuple(stretch for stretch in stretches if stretch[0] in files) for part, stretches in known.parts.items()}
    reader = partial(_read, name, READERS[known.form], known.shape, files)
    makers: dict[str, Callable[[], Tensor]] = {part: partial(reader, stretches) for part, stretches in split.items()}
    counts = {part: sum(stop - start for _, start, stop in stretches) for part, stretches in split.items()}
    size = " x ".join(map(str, known.shape))
    about = f"{name}, {counts['train']:,} images of {size} bytes to learn from, {counts['valid']:,} held out, {counts['test']:,} to test"
    facts = [[part, [[sums[file], start, stop] for file, start, stop in stretches]] for part, stretches in split.items()]
    return Pictures(Lazy(makers, name), known.shape, about, fingerprint("images", facts), name)


def _there(name: str, package: Package) -> Package:
    """A package without those of its files that FORMERS_DATA lacks, if it has some: what was given is taken as it is, and said."""
    given = set(lying(name, package))
    needed = {file for part in ("valid", "test") for file, _, _ in IMAGES[name].parts[part]} & {Path(f).name for f in package.files}
    if not given or not needed <= given or len(given) == len(package.files):
        return package
    log.warning("%s: %d of its %d files lie in FORMERS_DATA, and the others are left out", name, len(given), len(package.files))
    return package._replace(files={member: pin for member, pin in package.files.items() if Path(member).name in given})


def _read(
    name: str, reader: Callable[[Path], Bytes], shape: tuple[int, ...], files: dict[str, Path], stretches: tuple[tuple[str, int, int], ...]
) -> Tensor:
    """Stretches of the images in files as rows of bytes."""
    found = []
    for file, start, stop in stretches:
        images = reader(files[file])
        if images.shape[1:] not in (shape, shape[:2]) or len(images) < stop:
            raise FormersError(f"{name}/{file} holds images {images.shape}, not the published ones: take it from its source again.")
        found.append(images[start:stop].reshape(stop - start, -1))
    return torch.from_numpy(np.concatenate(found))


def read_idx(path: Path) -> Bytes:
    """The bytes of an IDX file, in the dimensions that it says."""
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) < 4 or list(content[:3]) != [0, 0, 8]:
        raise FormersError(f"{path} is no IDX file of bytes: it must begin with 0, 0, 8 and the number of its dimensions.")
    begin = 4 + 4 * int(content[3])
    shape = tuple(int(n) for n in content[4:begin].view(">u4")) if len(content) >= begin else ()
    if not shape or len(content) - begin != np.prod(shape):
        raise FormersError(f"{path} has {len(content):,} bytes, which is not what its head of dimensions {shape} says: take it again.")
    return content[begin:].reshape(shape)


def read_cifar(path: Path) -> Bytes:
    """The images (n, 32, 32, 3) of a file of CIFAR-10's binary version, without their labels."""
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % 3073:
        raise FormersError(f"{path} has {len(content):,} bytes, no whole number of records of 3,073: take it from its source again.")
    return content.reshape(-1, 3073)[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


READERS: dict[str, Callable[[Path], Bytes]] = {"idx": read_idx, "cifar": read_cifar}
