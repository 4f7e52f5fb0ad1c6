"""Opens images: a named set, a folder or glob of image files, or a NumPy file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from formers.core import FormersError
from formers.data.catalogue import named_kind
from formers.data.files import Lazy, listed
from formers.data.images.arrays import SUFFIXES as ARRAY_SUFFIXES
from formers.data.images.arrays import open_arrays
from formers.data.images.convert import Conversion, conversion
from formers.data.images.folder import open_folder
from formers.data.images.named import open_named
from formers.data.images.pillow import SUFFIXES as IMAGE_SUFFIXES
from formers.data.images.values import ImageData, ImageOptions, ImageSet, Opened
from formers.data.text import fingerprint

PARTS = {"train": "training", "valid": "validation", "test": "test"}


def open_images(data: str | Path, options: ImageOptions = ImageOptions(), size: tuple[int, int] | None = None) -> ImageData:
    """The images of `data` by part, converted as `options` say and, if a size (height, width) is given, resized and cropped to it."""
    if size is not None and min(size) < 1:
        raise FormersError(f"{size[0]} x {size[1]} is no size of an image: give a height and a width of at least 1.")
    name = str(data)
    if named_kind(name) == "images":
        opened = open_named(name)
    elif _is_array(name):
        opened = open_arrays(name, options)
    else:
        _refuse_other_files(name)
        opened = open_folder(name, options, size)
    changed = conversion(opened, options, size)
    return ImageData(
        parts=Lazy({part: partial(_converted, make, changed) for part, make in opened.makers.items()}, name),
        shape=changed.shape,
        levels=changed.levels,
        labels=opened.labels,
        about=_about(opened, changed),
        fingerprint=fingerprint("images", opened.facts, list(changed.notes)),
        source=opened.source,
        binary=opened.binary,
    )


def _is_array(data: str | Path) -> bool:
    path = Path(data).expanduser()
    return path.suffix.lower() in ARRAY_SUFFIXES and path.is_file()


def _refuse_other_files(name: str) -> None:
    """Refuses what is not there, and single files."""
    listed(name)
    path = Path(name).expanduser()
    if not path.is_file():
        return
    if path.suffix.lower() in IMAGE_SUFFIXES:
        raise FormersError(f"{name} is one image only: give a folder or a glob of at least two.")
    raise FormersError(f"{name} is not a file of images: give a folder or a glob of {', '.join(IMAGE_SUFFIXES)}, or a .npy or .npz file.")


def _converted(make: Callable[[], ImageSet], changed: Conversion) -> ImageSet:
    found = make()
    return found._replace(images=changed(found.images))


def _about(opened: Opened, changed: Conversion) -> str:
    """One line for people."""
    counts = ", ".join(f"{count:,} {PARTS[part]}" for part, count in opened.counts.items())
    shape = " x ".join(map(str, changed.shape))
    classes = [] if opened.labels is None else [f"{len(opened.labels)} classes"]
    facts = [f"{opened.name}: {counts} images of {shape}", f"{changed.levels} levels", *classes, *opened.notes, *changed.notes]
    return "; ".join(facts)
