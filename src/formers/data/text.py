"""Text to learn from, as bytes: a file, or `stdlib`, the sources of the running Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from formers.core import FormersError

STDLIB = "stdlib"
HELD_OUT = 0.05
"""The share of a text that is kept for validation."""


class Text(NamedTuple):
    """Bytes to learn from and bytes to judge by, uint8 (n,), and how they were parted."""

    train: Tensor
    valid: Tensor
    about: str


def read_text(data: str | Path) -> Text:
    """The text that `data` names: the file's bytes, its last twentieth held out, or `stdlib`, every twentieth file held out."""
    return read_stdlib() if str(data) == STDLIB else read_file(Path(data))


def read_file(path: Path) -> Text:
    """A file's bytes, the last twentieth held out."""
    content = read_bytes(path)
    if len(content) < 4:
        raise FormersError(f"{path} holds {len(content)} bytes: a text to learn from and to judge by needs at least 4.")
    cut = len(content) - max(2, round(len(content) * HELD_OUT))
    return Text(_tensor(content[:cut]), _tensor(content[cut:]), f"{path}, its last {len(content) - cut:,} bytes held out")


def read_bytes(path: Path) -> bytes:
    """The content of a file that must be there and must not be empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FormersError(f"{path} is not there: give a file, or {STDLIB!r} for the running Python's own sources.") from None
    except IsADirectoryError:
        raise FormersError(f"{path} is a folder: give one file.") from None
    except OSError as error:
        raise FormersError(f"{path} cannot be read ({error.strerror}): give a file that can.") from None
    if not content:
        raise FormersError(f"{path} is empty: give a file with text in it.")
    return content


def read_stdlib() -> Text:
    """The .py files of the running Python's standard library, tests left out; a file is held out by the hash of its name."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        name = path.relative_to(root)
        if not left_out.intersection(name.parts):
            parts[held_out(name.as_posix())].append(path.read_bytes())
    if not parts[True] or not parts[False]:
        raise FormersError(f"the running Python has no library sources under {root}: give a text file instead.")
    train, valid = (b"\n".join(parts[held]) for held in (False, True))
    about = f"standard library of Python, {len(parts[False])} files to learn from and {len(parts[True])} held out"
    return Text(_tensor(train), _tensor(valid), about)


def held_out(name: str) -> bool:
    """Whether a file or a source is held out: a function of its name or text alone, the same on every machine."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") / 2**32
    return share < HELD_OUT


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
