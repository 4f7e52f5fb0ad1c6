"""Atomic writes, manifests with checksums, and the checkpoints of a run, newest first.

    RUN/ckpt/step-00000123/{config.json, model.safetensors, ..., MANIFEST.json}

A folder is written under a temporary name, synced to disk, and renamed: a folder named step-... is complete. Later damage (a flipped
bit, truncation, an edit) is detected by its manifest.
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
"""The state of the training in a checkpoint, beside the model."""
BESIDE = ".tmp-"
"""The prefix of names of folders and files that are not complete yet."""


def write(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, then renames it, so that a reader sees the old or the new file, never a partial one."""
    beside = path.with_name(f"{BESIDE}{os.getpid()}-{path.name}")
    try:
        write_through(beside, content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Writes a file and syncs it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to disk; on Windows folders cannot be opened, and renaming is journalled."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(content: Any) -> bytes:
    """A value as indented JSON."""
    return (json.dumps(content, indent=2) + "\n").encode()


def manifest(files: Mapping[str, bytes | Path]) -> bytes:
    """The manifest of files, given as contents or paths: sizes, checksums, and a checksum of the manifest itself."""
    listed = {name: {"bytes": _size(files[name]), "sha256": digest(files[name])} for name in sorted(files)}
    return _manifest(listed)


def _manifest(listed: Mapping[str, Any]) -> bytes:
    return to_json({"files": listed, "sha256": hashlib.sha256(json.dumps(listed).encode()).hexdigest()})


def digest(content: bytes | Path) -> str:
    """The SHA-256 of bytes, or of a file."""
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
    """What is wrong with a folder that has a manifest, in a few words; None if its files, or only some of them, are as written."""
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
                return f"{name} has changed since it was written: its checksum differs"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, newest first; `fault` checks whether they are damaged."""
    found = (run / CHECKPOINTS).glob("step-*")
    return sorted((f for f in found if f.is_dir() and f.name[5:].isdigit()), key=lambda f: int(f.name[5:]), reverse=True)


def newest(run: Path, say: Callable[[str], None], only: Container[str] | None = None) -> Path | None:
    """The newest undamaged checkpoint of a run; damaged ones are skipped and reported. None if there never was one."""
    found = checkpoints(run)
    for folder in found:
        wrong = fault(folder, only)
        if wrong is None:
            return folder
        if not folder.exists():  # deleted meanwhile by a running training: there are newer ones
            return newest(run, say, only)
        say(f"{folder} is skipped: {wrong}")
    if found:
        raise FormersError(f"{run} has no undamaged checkpoint ({found[0].name}: {wrong}): take the folder from a copy, or train again.")
    return None


def best(run: Path, last: Path, only: Container[str] | None = None) -> Path:
    """The checkpoint with the best validation loss, as recorded in the newest one, `last`."""
    step = json.loads((last / TRAINING).read_bytes()).get("best_step")
    folder = last if step is None else run / CHECKPOINTS / step_name(step)
    wrong = fault(folder, only)
    if wrong is not None:
        raise FormersError(f"the best checkpoint, {folder}, is damaged ({wrong}): use the last one.")
    return folder


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step-{step:08d}"


def remove(folder: Path) -> None:
    """Removes a folder; it is renamed first, so that a partly removed folder is never used as a checkpoint."""
    aside = folder.with_name(f"{BESIDE}{os.getpid()}-gone-{folder.name}")
    folder.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)
