"""Opens data by name, scheme, path or suffix.

enwik8, digits, numbers                    a named set (data/catalogue.py)
babi:1-3, multi30k:en-fr, task:addition    a scheme and its argument
my.txt, texts.tsv, images.npz              a file, by its suffix and its name
texts/, images/, 'texts/*.txt'             a folder or a glob, by its files
a.en,b.fr                                  two parallel files
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from formers.data.babi import STORY_FILE, StoryData, open_stories, story_place
from formers.data.catalogue import Kind, named_kind
from formers.data.examples import Examples
from formers.data.files import parallel, suffix
from formers.data.images import ImageData, ImageOptions, open_images
from formers.data.images.folder import is_image_folder
from formers.data.labelled import has_label, open_labelled
from formers.data.pairs import open_pairs
from formers.data.passages import Passages, open_passages
from formers.data.reading import Reading
from formers.data.tasks import Strings, Vectors, open_strings, open_vectors
from formers.data.text import TextData, open_text

Data = TextData | Examples | StoryData | Passages | ImageData | Strings | Vectors


class Query(NamedTuple):
    """A request to open data."""

    data: str
    reading: Reading
    labels: tuple[str, ...] | None
    """The classes of labelled texts or stories; None: those that occur."""
    images: ImageOptions
    size: tuple[int, int] | None
    """Height and width that images are resized to."""
    reader: str
    """The member that reads the data, for error messages."""


OPENERS: dict[Kind, Callable[[Query], Data]] = {
    "text": lambda q: open_text(q.data, q.reading),
    "pairs": lambda q: open_pairs(q.data, q.reading, q.reader),
    "labels": lambda q: open_labelled(q.data, q.reading, q.labels),
    "stories": lambda q: open_stories(q.data, q.reading, q.labels),
    "passages": lambda q: open_passages(q.data),
    "images": lambda q: open_images(q.data, q.images, q.size),
    "task": lambda q: open_strings(q.data),
    "vectors": lambda q: open_vectors(q.data),
}
SUFFIXES: dict[str, Callable[[str], Kind]] = {
    ".npy": lambda name: "images",
    ".npz": lambda name: "images",
    ".tsv": lambda name: "labels",
    ".jsonl": lambda name: "labels" if has_label(name) else "text",
}
"""The kind of a file by its suffix; other files are text. An encoder-decoder reads a .tsv or .jsonl file as pairs."""


def open_data(
    data: str | Path,
    reading: Reading = Reading(),
    kind: Kind | None = None,
    *,
    labels: Sequence[str] | None = None,
    images: ImageOptions = ImageOptions(),
    size: tuple[int, int] | None = None,
    reader: str = "this member",
) -> Data:
    """Opens data as a kind; default: the kind that their name implies (`kind_of`)."""
    known = None if labels is None else tuple(labels)
    return OPENERS[kind or kind_of(data)](Query(str(data), reading, known, images, size, reader))


def kind_of(data: str | Path) -> Kind:
    """The kind of data: by name or scheme, else by the files."""
    kind = named_kind(str(data))
    if kind is None or (kind == "stories" and Path(data).exists()):  # a file or folder called as bAbI is
        return _kind_of_files(str(data))
    return kind


def _kind_of_files(name: str) -> Kind:
    path = Path(name).expanduser()
    place = story_place(name)[0] if ":" in name else path
    if any(STORY_FILE.fullmatch(file.name) for file in (place.iterdir() if place.is_dir() else [place] if place.is_file() else [])):
        return "stories"
    if path.is_file():
        by_suffix = SUFFIXES.get(suffix(path))
        return "text" if by_suffix is None else by_suffix(name)
    if (path.is_dir() or glob.has_magic(name)) and is_image_folder(name):
        return "images"
    return "pairs" if len(parallel(name)) == 2 else "text"
