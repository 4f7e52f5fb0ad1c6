"""Folders and globs of PNG, JPEG and WebP files: which files there are, their parts and their classes.

`train/`, `valid/` (or `val/`, `validation/`) and `test/` are the split where there is a `train/`; otherwise a tenth is held out. Below
that, a folder per class gives the labels. Symbolic links are skipped.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from formers.core import FormersError
from formers.data.files import resolved, walk
from formers.data.images.arrays import PART_NAMES
from formers.data.images.convert import RESIZED
from formers.data.images.decoded import Decoded, decoded, shown_names
from formers.data.images.pillow import SUFFIXES
from formers.data.images.split import HOLD_OUT_NOTE, hold_out
from formers.data.images.values import BYTE_LEVELS, ImageOptions, ImageSet, Opened

log = logging.getLogger(__name__)

SPELLINGS = {spelling: part for part, names in PART_NAMES.items() for spelling in names}


def is_image_folder(data: str) -> bool:
    """Whether a folder or a glob has images, and no more other files than these."""
    path = Path(data).expanduser()
    if not path.is_dir() and not glob.has_magic(data):
        return False
    names = list(_listed(data))
    images = sum(_is_image(name) for name in names)
    return images > 0 and 2 * images >= len(names)


def open_folder(name: str, options: ImageOptions, size: tuple[int, int] | None) -> Opened:
    """The images of a folder or a glob, all of one size."""
    files = {file: path for file, path in _listed(name).items() if _is_image(file)}
    if not files:
        raise FormersError(f"{name} has no image: give a folder or a glob with files that end in {', '.join(SUFFIXES)}.")
    found = decoded(name, files, size, options.skip_bad)
    if found.bad:
        log.warning("%s: %d unreadable files are left out: %s", name, len(found.bad), ", ".join(found.bad))
    parts, notes = _split(name, found.names)
    classes, labels = _labels(name, found.names, parts)
    return Opened(
        name=name,
        makers={part: partial(_part, found.images, rows, labels[part]) for part, rows in parts.items()},
        counts={part: len(rows) for part, rows in parts.items()},
        shape=(found.images.shape[1], found.images.shape[2], found.images.shape[3]),
        levels=BYTE_LEVELS,
        labels=classes,
        notes=(*notes, *_conversion_notes(found, size)),
        facts=["folder", found.sums, [[part, rows] for part, rows in parts.items()], list(found.images.shape)],
        source=resolved(name),
    )


def _listed(data: str) -> dict[str, Path]:
    """The files of a folder or a glob by relative name, sorted; without hidden files, and without symbolic links below the folder."""
    path = Path(data).expanduser()
    if path.is_dir():
        root, found = path, walk(path)
    else:
        root = Path(os.path.dirname(re.split(r"[*?[]", str(path), maxsplit=1)[0]))
        found = [Path(file) for file in glob.glob(str(path), recursive=True)]
    names = {file.relative_to(root).as_posix(): file for file in found if not file.name.startswith(".")}
    return {name: names[name] for name in sorted(names) if _is_plain(root, PurePosixPath(name)) and names[name].is_file()}


def _is_plain(root: Path, name: PurePosixPath) -> bool:
    return not any((root / place).is_symlink() for place in (name, *name.parents[:-1]))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _split(name: str, files: tuple[str, ...]) -> tuple[dict[str, list[int]], list[str]]:
    """The numbers of the files of each part, and how they were split."""
    folders = [PurePosixPath(file).parts[0] if "/" in file else "" for file in files]
    if "train" not in folders:
        train, valid = hold_out(len(files), name)
        return {"train": train, "valid": valid}, [HOLD_OUT_NOTE.format(held=len(valid), total=len(files))]
    parts: dict[str, list[int]] = {}
    for number, folder in enumerate(folders):
        if folder not in SPELLINGS:
            raise FormersError(f"{name} has a folder train, and {files[number]} is not in train, valid or test: move it, or leave it out.")
        parts.setdefault(SPELLINGS[folder], []).append(number)
    notes = ["split by folders"]
    if "valid" not in parts:
        rows = parts["train"]
        train, valid = hold_out(len(rows), f"{name}/train")
        parts |= {"train": [rows[i] for i in train], "valid": [rows[i] for i in valid]}
        notes.append(f"{HOLD_OUT_NOTE.format(held=len(valid), total=len(rows))} of train")
    return {part: parts[part] for part in PART_NAMES if part in parts}, notes


def _labels(name: str, files: tuple[str, ...], parts: Mapping[str, list[int]]) -> tuple[tuple[str, ...] | None, dict[str, Tensor | None]]:
    """The classes, which are the folders of the training images, and the class numbers of each part that has such folders."""
    below = 1 if PurePosixPath(files[0]).parts[0] in SPELLINGS and any(file.startswith("train/") for file in files) else 0
    folders = [parents[below] if len(parents := PurePosixPath(file).parent.parts) > below else None for file in files]
    # A held-out part has no folders: its classes count, too.
    own = [row for part in ("train", "valid") for row in parts[part] if below == 0 or files[row].startswith("train/")]
    classes = sorted({folder for row in own if (folder := folders[row]) is not None})
    if len(classes) < 2 or any(folders[row] is None for row in own):
        return None, dict.fromkeys(parts)
    labels: dict[str, Tensor | None] = {}
    for part, rows in parts.items():
        found = [folder for row in rows if (folder := folders[row]) is not None]
        if strange := sorted(set(found) - set(classes)):
            raise FormersError(f"{name} has the class {strange[0]!r} in its {part} part only: add training images of this class.")
        labels[part] = torch.tensor([classes.index(folder) for folder in found]) if len(found) == len(rows) else None
    return tuple(classes), labels


def _conversion_notes(found: Decoded, size: tuple[int, int] | None) -> list[str]:
    notes = [] if size is None else [f"{RESIZED} ({size[0]} x {size[1]})"]
    return [*notes, f"unreadable files left out: {shown_names(found.bad)}"] if found.bad else notes


def _part(images: Tensor, rows: list[int], labels: Tensor | None) -> ImageSet:
    return ImageSet(images[rows], labels)
