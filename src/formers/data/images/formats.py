"""Published files of images: IDX (MNIST), CIFAR-10's binary version, .amat (binary MNIST) and the comma-separated digits.

IDX: two zeros, 8 for bytes, the number of dimensions, these as big-endian integers, the bytes. CIFAR-10: records of a label and three
planes of 32 x 32, which become the channels of a pixel. .amat: one image a line, 0 and 1 with spaces between. digits: 64 values from 0
to 16 and the label a line. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError

Bytes = NDArray[np.uint8]


def read_idx(path: Path) -> Bytes:
    """The bytes of an IDX file, in the dimensions that its header gives."""
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) < 4 or list(content[:3]) != [0, 0, 8]:
        raise FormersError(f"{path} is not an IDX file of bytes, which begins with 0, 0, 8: download it again.")
    begin = 4 + 4 * int(content[3])
    shape = tuple(int(n) for n in content[4:begin].view(">u4")) if len(content) >= begin else ()
    if not shape or len(content) - begin != np.prod(shape):
        raise FormersError(f"{path} has {len(content):,} bytes, which does not match its header of dimensions {shape}: download it again.")
    return content[begin:].reshape(shape)


def read_cifar(path: Path) -> tuple[Bytes, Bytes]:
    """The images (n, 32, 32, 3) and labels (n,) of a file of CIFAR-10's binary version."""
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % 3073:
        raise FormersError(f"{path} has {len(content):,} bytes, which is not a multiple of a record's 3,073: download it again.")
    records = content.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def read_amat(path: Path, shape: tuple[int, int]) -> Bytes:
    """The binary images (n, height, width) of a text file with one image a line, 0 or 1 for each pixel."""
    content = np.fromfile(path, dtype=np.uint8)
    pixels = content[(content == ord("0")) | (content == ord("1"))]
    blanks = sum(int((content == ord(blank)).sum()) for blank in " \n\r")
    if len(pixels) == 0 or len(pixels) % (shape[0] * shape[1]) or len(pixels) + blanks != len(content):
        raise FormersError(f"{path} must hold {shape[0] * shape[1]} values 0 or 1 a line, with spaces between: download it again.")
    return (pixels - np.uint8(ord("0"))).reshape(-1, *shape)


def read_digits(path: Path) -> tuple[Bytes, Bytes]:
    """The images (n, 8, 8) of 17 levels and labels (n,) of the file of digits."""
    with path.open(encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return table[:, :64].reshape(-1, 8, 8).astype(np.uint8), table[:, 64].astype(np.uint8)


Reader = Callable[[Path], tuple[Bytes, Bytes | None]]
READERS: dict[str, Reader] = {"idx": lambda path: (read_idx(path), None), "cifar": read_cifar}
