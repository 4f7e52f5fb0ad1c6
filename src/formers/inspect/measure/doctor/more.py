"""What gives more: optional packages, and a shell that completes names."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from formers.inspect.measure.doctor.machine import installed
from formers.training.sinks import SINKS


class Extra(NamedTuple):
    """An optional package, as pip is asked for it, and what it gives."""

    package: str
    bound: str
    gives: str


EXTRAS = {
    "plot": (Extra("matplotlib", ">=3.8", "pictures: formers show ... --out picture.png"),),
    "mt": (Extra("sacrebleu", ">=2.4", "BLEU scores of pairs"),),
    "tensorboard": (Extra("tensorboard", ">=2.16", "curves in a browser: formers train ... --track tensorboard"),),
    "images": (
        Extra("pillow", ">=10", "image files as data, and animations"),
        Extra("scikit-learn", ">=1.4", "the data set digits"),
    ),
    "rl": (
        Extra("gymnasium", ">=1.0", "environments of other packages: formers train gtrxl --env ID"),
        Extra("minigrid", ">=3.0", "MiniGrid's environments"),
        Extra("pillow", ">=10", "image files as data, and animations"),
    ),
    "serve": (
        Extra("starlette", ">=0.40", "the local page and its API: formers serve"),
        Extra("uvicorn", ">=0.30", "the local page and its API: formers serve"),
    ),
}
"""By the name of the extra in pyproject.toml."""
COMPLETIONS = {"bash": ".bash_completions/formers.sh", "zsh": ".zfunc/_formers", "fish": ".config/fish/completions/formers.fish"}
"""Where `formers --install-completion` puts its file, below the user's home."""


def extras() -> list[dict[str, Any]]:
    """The optional packages: what they give, which version is there, and how to install them."""
    trackers = [Extra(sink.package, "", f"figures go there: formers train ... --track {sink.name}") for sink in SINKS.values()]
    declared = list(dict.fromkeys(extra for packages in EXTRAS.values() for extra in packages))  # two may share a package
    known = {extra.package: extra for extra in (*trackers, *declared)}  # what pyproject.toml says counts more
    ordered = [*declared, *(extra for extra in known.values() if extra not in declared)]
    return [
        {"package": extra.package, "gives": extra.gives, "version": installed(extra.package), "install": _command(extra)}
        for extra in ordered
    ]


def completion() -> dict[str, Any]:
    """Whether TAB completes names in the user's shell, and the command that makes it do so."""
    shell = _shell()
    place = COMPLETIONS.get(shell or "")
    there = None if place is None else (Path.home() / place).is_file()
    return {"shell": shell, "installed": there, "install": "formers --install-completion"}


def _command(extra: Extra) -> str:
    return f"pip install '{extra.package}{extra.bound}'" if extra.bound else f"pip install {extra.package}"


def _shell() -> str | None:
    """The shell that this was called from, else the one that the user logs in with."""
    with suppress(ImportError, OSError, RuntimeError):  # typer brings it
        found: tuple[str, str] = importlib.import_module("shellingham").detect_shell()
        return found[0]
    return Path(os.environ.get("SHELL") or "").name or None
