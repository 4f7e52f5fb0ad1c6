"""Files that are there whole or not at all, sealed by a manifest of their checksums; and the checkpoints of a run, newest first.

    RUN/ckpt/step-00000123/{config.json, model.safetensors, ..., MANIFEST.json}

A folder is written beside its place, forced to the disk, and renamed: what bears the name step-... is complete. What happens to it
afterwards (a flipped bit, a cut, an edit) its manifest tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from formers.core import FormersError

MANIFEST = "MANIFEST.json"
CHECKPOINTS = "ckpt"
TRAINING = "training.json"
"""What a checkpoint knows of the training, beside the model."""
BESIDE = ".tmp-"
"""What the name of a folder or file begins with until it is complete."""


def write(path: Path, content: bytes) -> None:
    """Writes a file beside its place, then moves it there, so that a reader finds the old or the new one, never half of one."""
    beside = path.with_name(f"{BESIDE}{os.getpid()}-{path.name}")
    try:
        write_through(beside, content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder; on Windows folders cannot be opened, and renaming is journalled."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(content: Any) -> bytes:
    """A value as JSON for people to read."""
    return (json.dumps(content, indent=2) + "\n").encode()


def manifest(files: Mapping[str, bytes | Path]) -> bytes:
    """The manifest of files, given as their contents or as where they are: sizes and checksums, and the manifest's own."""
    listed = {name: {"bytes": _size(files[name]), "sha256": digest(files[name])} for name in sorted(files)}
    return _manifest(listed)


def _manifest(listed: Mapping[str, Any]) -> bytes:
    return to_json({"files": listed, "sha256": hashlib.sha256(json.dumps(listed).encode()).hexdigest()})


def digest(content: bytes | Path) -> str:
    """The SHA-256 of a content, or of a file's."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    sha = hashlib.sha256()
    with content.open("rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
    return sha.hexdigest()


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def fault(folder: Path, only: Container[str] | None = None) -> str | None:
    """What is wrong with a sealed folder, in a few words, or None: every file of its manifest, or only some, is as written."""
    try:
        content = (folder / MANIFEST).read_bytes()
        listed = json.loads(content)["files"]
        whole = content == _manifest(listed)
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        return f"{MANIFEST} is damaged"
    for name in (name for name in listed if only is None or name in only):
        file = folder / name
        try:
            if _size(file) != listed[name]["bytes"]:
                return f"{name} has {_size(file):,} bytes of {listed[name]['bytes']:,}"
            if digest(file) != listed[name]["sha256"]:
                return f"{name} is not as it was written: its checksum differs"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, newest first; whether they are still sound, `fault` says."""
    found = (run / CHECKPOINTS).glob("step-*")
    return sorted((f for f in found if f.is_dir() and f.name[5:].isdigit()), key=lambda f: int(f.name[5:]), reverse=True)


def newest(run: Path, say: Callable[[str], None], only: Container[str] | None = None) -> Path | None:
    """The newest sound checkpoint of a run; damaged ones are skipped and named. None if there never was one."""
    found = checkpoints(run)
    for folder in found:
        wrong = fault(folder, only)
        if wrong is None:
            return folder
        if not folder.exists():  # a training has pruned it meanwhile, so there are newer ones
            return newest(run, say, only)
        say(f"{folder} is skipped: {wrong}")
    if found:
        raise FormersError(f"{run} has no sound checkpoint ({found[0].name}: {wrong}): take the folder from a copy, or train again.")
    return None


def best(run: Path, last: Path, only: Container[str] | None = None) -> Path:
    """The checkpoint that did best on held-out data, as the newest one `last` remembers it."""
    step = json.loads((last / TRAINING).read_bytes()).get("best_step")
    folder = last if step is None else run / CHECKPOINTS / step_name(step)
    wrong = fault(folder, only)
    if wrong is not None:
        raise FormersError(f"the best checkpoint, {folder}, is not sound ({wrong}): use the last one.")
    return folder


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step-{step:08d}"


def remove(folder: Path) -> None:
    """Removes a folder; its name goes first, so that half of it is never taken for a checkpoint."""
    aside = folder.with_name(f"{BESIDE}{os.getpid()}-gone-{folder.name}")
    folder.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)
