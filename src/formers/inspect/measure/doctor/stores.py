"""Where data are: FORMERS_DATA, the named sets, and the cache. Names are looked for; nothing is fetched and no sum is checked."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from formers.core import FormersError
from formers.data.babi_files import whole_package
from formers.data.cache import cache_folder
from formers.data.catalogue import BINARY, DIGITS, DIGITS_FILE, IMAGES, MULTI30K_FILES, NAMES, PAIRS, SETS, STORIES, Package
from formers.data.download import lying, whereabouts
from formers.data.images.named import static_files

WORDS = {"given": "in FORMERS_DATA", "cached": "in the cache", "download": "to be downloaded"}


def data_facts() -> dict[str, Any]:
    """FORMERS_DATA (folder, missing or unset), and where each named set would come from."""
    folder = os.environ.get("FORMERS_DATA") or None
    state = "unset" if folder is None else "folder" if Path(folder).expanduser().is_dir() else "missing"
    return {"folder": folder, "state": state, "sets": {name: _place(name) for name in NAMES}}


def cache_facts() -> dict[str, Any]:
    """The cache: where it is, how large, and whether it can be written."""
    folder = cache_folder()
    sizes = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                sizes.append((Path(place) / name).stat().st_size)
    return {"folder": str(folder), "exists": folder.is_dir(), "files": len(sizes), "bytes": sum(sizes), "writable": _writable(folder)}


def _place(name: str) -> str:
    """Where a set comes from, in words; one that no file is needed for is made when it is asked for."""
    packages: tuple[Package, ...] = tuple(MULTI30K_FILES.values()) if name == PAIRS else ()
    if name in STORIES:
        packages = (whole_package(name),)
    if name in SETS or name in IMAGES:
        packages = SETS[name].packages if name in SETS else IMAGES[name].packages
    try:
        if name == DIGITS:
            return WORDS["given"] if lying(name, DIGITS_FILE) else "installed with scikit-learn"
        if BINARY.get(name) == "static":
            return WORDS["given"] if None not in static_files().values() else "its files must be put in FORMERS_DATA"
        if name in BINARY:
            return _place("mnist")  # which it is made from
        places = [whereabouts(name, package) for package in packages]
    except FormersError:
        return "refused: FORMERS_DATA is not a folder"
    if places == ["download"] and (there := lying(name, packages[0])):
        return f"{len(there)} of {len(packages[0].files)} files {WORDS['given']}"
    if len(set(places)) <= 1:
        return WORDS[places[0]] if places else "made here"
    return ", ".join(f"{places.count(place)} of {len(places)} files {WORDS[place]}" for place in dict.fromkeys(places))


def _writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, or in the nearest one above it that is there."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path())
    try:
        with tempfile.TemporaryFile(dir=there):
            return True
    except OSError:
        return False
