"""Images in NumPy files: .npy holds images, .npz images and perhaps labels and a split.

Images are (n, height, width) or (n, height, width, channels) with 1 to 4 channels, each modelled as it is. Integers are 0 ... 255, floats
0 ... 1 (times 255, rounded), booleans two levels. Integers are taken as 256 levels, unless `levels` is given and all are below it: then
they are these levels already. Nothing is unpickled.
"""

from __future__ import annotations

import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from formers.core import FormersError
from formers.data.cache import digest
from formers.data.files import reading, resolved
from formers.data.images.split import HOLD_OUT_NOTE, hold_out
from formers.data.images.values import BYTE_LEVELS, ImageOptions, ImageSet, Opened

Array = NDArray[Any]
SUFFIXES = (".npy", ".npz")
PART_NAMES = {"train": ("train",), "valid": ("valid", "val", "validation"), "test": ("test",)}
KEYS = "images (and labels), x (and y), x_train, y_train, x_test, y_test, or train_images, train_labels, test_images, test_labels"
BROKEN = (ValueError, EOFError, KeyError, TypeError, SyntaxError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What NumPy raises on files that are broken."""


class Loaded(NamedTuple):
    """A part as it was read: images, and perhaps labels."""

    images: Array
    labels: Array | None


def open_arrays(name: str, options: ImageOptions) -> Opened:
    """The images of a .npy or .npz file."""
    path = Path(name).expanduser()
    loaded = _load(name, path)
    parts = _parts(name, loaded)
    first = next(iter(parts.values())).images
    dtypes = {part.images.dtype for part in parts.values()}
    if len({_channelled(name, part.images).shape[1:] for part in parts.values()}) > 1 or len(dtypes) > 1:
        shapes = ", ".join(f"{part} {found.images.dtype} {found.images.shape}" for part, found in parts.items())
        raise FormersError(f"{name} holds images of different shapes or types ({shapes}): give all parts one shape and type.")
    notes = ["floats times 255, rounded"] if first.dtype.kind == "f" else []
    levels = _levels(list(parts.values()), options)
    if first.dtype.kind != "b" and levels != BYTE_LEVELS:
        notes.append(f"values taken as {levels} levels")
    classes = _classes(name, parts)
    sets = {part: ImageSet(torch.from_numpy(_bytes(name, found.images)), _numbers(found, classes)) for part, found in parts.items()}
    if "valid" not in sets:
        whole = sets["train"]
        train, valid = hold_out(len(whole.images), name)
        notes.append(HOLD_OUT_NOTE.format(held=len(valid), total=len(whole.images)))
        sets = {"train": _rows(whole, train), "valid": _rows(whole, valid), **{part: sets[part] for part in sets if part != "train"}}
    _, height, width, channels = sets["train"].images.shape
    return Opened(
        name=name,
        makers={part: partial(ImageSet, *found) for part, found in sets.items()},
        counts={part: len(found.images) for part, found in sets.items()},
        shape=(height, width, channels),
        levels=levels,
        labels=classes,
        notes=tuple(notes),
        facts=["array", digest(path), levels],
        source=resolved(name),
    )


def _load(name: str, path: Path) -> dict[str, Array]:
    """The arrays of a file by key; a .npy file has one, called images."""
    try:
        with reading(name):
            found = np.load(path, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {"images": found}
            with found:
                return {key: found[key] for key in found.files}
    except BROKEN as error:
        if "Object arrays" in str(error):
            raise FormersError(
                f"{name} holds Python objects, which are never loaded: save images of one size as one array of uint8."
            ) from None
        if "pickle" in str(error):  # numpy's error for any file without its header
            raise FormersError(f"{name} is not a NumPy file: save an array of images with numpy.save or numpy.savez.") from None
        raise FormersError(f"{name} cannot be read as a NumPy file ({str(error).splitlines()[0].strip('. ')}): save it again.") from None


def _parts(name: str, arrays: dict[str, Array]) -> dict[str, Loaded]:
    """The parts that the keys of a file name; images without a part are all for training."""
    for images, labels in (("images", "labels"), ("x", "y")):
        if images in arrays and arrays.keys() <= {images, labels}:
            return {"train": _checked(name, arrays[images], arrays.get(labels))}
    for images, labels in (("x_{}", "y_{}"), ("{}_images", "{}_labels")):
        spelt = {part: [spelling for spelling in names if images.format(spelling) in arrays] for part, names in PART_NAMES.items()}
        used = {part: names[0] for part, names in spelt.items() if names}
        keys = {form.format(spelling) for spelling in used.values() for form in (images, labels)}
        if "train" in used and arrays.keys() <= keys:
            return {
                part: _checked(name, arrays[images.format(spelling)], arrays.get(labels.format(spelling)))
                for part, spelling in used.items()
            }
    raise FormersError(f"{name} has the keys {', '.join(map(repr, arrays)) or 'none'}: give it {KEYS}.")


def _checked(name: str, images: Array, labels: Array | None) -> Loaded:
    """Images and labels whose types and values are as they should be."""
    shape = _channelled(name, images).shape
    if min(shape) < 1:
        raise FormersError(f"{name} has images {images.shape}, which are empty: give at least two images of at least one pixel.")
    if images.dtype.kind not in "buif":
        raise FormersError(f"{name} holds values of type {images.dtype}: give integers from 0 to 255, floats from 0 to 1, or booleans.")
    if images.dtype.kind == "f":
        wrong = images[~((images >= 0) & (images <= 1))]  # NaN is neither
        rule = "floats from 0 to 1" + (" (divide by the largest value first)" if np.isfinite(images).all() else "")
    else:
        wrong = images[(images < 0) | (images > 255)] if images.dtype.kind != "b" else images[:0]
        rule = "integers from 0 to 255"
    if wrong.size:
        raise FormersError(f"{name} holds the value {wrong.flat[0]}: give {rule}.")
    if labels is None:
        return Loaded(images, None)
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.shape != shape[:1] or flat.dtype.kind not in "buiU":
        raise FormersError(
            f"{name} has labels {labels.dtype} {labels.shape} for {shape[0]:,} images: give one integer or string for each image."
        )
    if flat.dtype.kind == "i" and flat.min() < 0:
        raise FormersError(f"{name} has the label {flat.min()}: give class numbers from 0.")
    return Loaded(images, flat)


def _channelled(name: str, images: Array) -> Array:
    """Images as (n, height, width, channels)."""
    if images.ndim == 3:
        return images[..., None]
    if images.ndim != 4 or not 1 <= images.shape[-1] <= 4:
        raise FormersError(f"{name} has images {images.shape}: give (n, height, width) or (n, height, width, channels), 1 to 4 channels.")
    return images


def _levels(parts: list[Loaded], options: ImageOptions) -> int:
    kind = parts[0].images.dtype.kind
    if kind == "b":
        return 2
    if kind != "f" and options.levels is not None and max(int(part.images.max()) for part in parts) < options.levels:
        return options.levels
    return BYTE_LEVELS


def _bytes(name: str, images: Array) -> NDArray[np.uint8]:
    found = _channelled(name, images)
    return np.ascontiguousarray(np.rint(found * 255.0) if found.dtype.kind == "f" else found, dtype=np.uint8)


def _classes(name: str, parts: dict[str, Loaded]) -> tuple[str, ...] | None:
    """The names of the classes: the strings that occur in training, sorted, or the numbers up to the largest."""
    labels = {part: found.labels for part, found in parts.items() if found.labels is not None}
    if "train" not in labels:
        return None
    if len({found.dtype.kind == "U" for found in labels.values()}) > 1:
        raise FormersError(f"{name} has labels that are strings in one part and numbers in another: give all parts one kind.")
    if labels["train"].dtype.kind != "U":
        largest = max(int(found.max()) for found in labels.values())
        if largest >= sum(len(found) for found in labels.values()):
            raise FormersError(f"{name} has the label {largest}, which is more than its number of images: number the classes from 0.")
        return tuple(str(number) for number in range(largest + 1))
    classes = tuple(str(label) for label in np.unique(labels["train"]))
    for part, found in labels.items():
        if strange := sorted(set(map(str, np.unique(found))) - set(classes)):
            raise FormersError(f"{name} has the label {strange[0]!r} in its {part} part only: add training images of this class.")
    return classes


def _numbers(found: Loaded, classes: tuple[str, ...] | None) -> torch.Tensor | None:
    if found.labels is None or classes is None:
        return None
    if found.labels.dtype.kind == "U":
        return torch.from_numpy(np.searchsorted(np.array(classes), found.labels).astype(np.int64))
    return torch.from_numpy(found.labels.astype(np.int64))


def _rows(found: ImageSet, rows: list[int]) -> ImageSet:
    return ImageSet(found.images[rows], None if found.labels is None else found.labels[rows])
