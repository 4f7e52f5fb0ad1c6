"""A run's folder: its lock, its description run.json, and how one run replaces another.

RUN/run.json        member, data and its fingerprint, sizes, settings, versions, command; at the end the results
RUN/run.yaml        the same choices for `formers train --config`
RUN/metrics.jsonl   a line for each step and each evaluation
RUN/ckpt/           checkpoints
RUN/bad/            batches whose loss or gradient was not finite
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from formers import __version__
from formers.core import FormersError
from formers.model.files import BESIDE, CHECKPOINTS, MANIFEST, to_json, write
from formers.model.save import CONFIG, TOKENIZER, WEIGHTS
from formers.training.log import METRICS, finite

RUN, YAML, LOCK, BAD = "run.json", "run.yaml", "lock", "bad"
FORMAT = "formers/run/1"
OURS = (
    RUN, YAML, METRICS, CHECKPOINTS, BAD, CONFIG, WEIGHTS, TOKENIZER, MANIFEST, "tensorboard", "wandb", "wandb-id", "mlflow-id",
)  # fmt: skip
"""The files that a run may write in its folder."""
OLD, BEGUN = f"{BESIDE}old-run", f"{BESIDE}begun"
"""The folder that holds a replaced run until the new one has started, and the mark of a run that has not started yet."""
FACTS = (
    "member", "preset", "from", "data", "fingerprint", "reading", "sizes", "settings", "spec", "parameters", "device", "track", "command",
)  # fmt: skip
"""The facts that a run needs to resume."""


@contextmanager
def claimed(folder: Path, resumed: bool = False) -> Iterator[None]:
    """Context in which no other process trains in the folder. It is created if needed, and removed if no run was started in it.

    resumed: whether the run is resumed, so that another folder is no remedy in error messages.
    """
    from filelock import FileLock, Timeout

    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        fix = "wait until it ends, or stop it first" if resumed else "wait for it, or give another --out"
        raise FormersError(f"another process is training in {folder}: {fix}.") from None
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        fix = "make it writable, or resume a copy of it" if resumed else "give another --out"
        raise FormersError(f"{folder} cannot be written to ({why}): {fix}.") from None
    try:
        yield
    finally:
        lock.release()
        if folder in made and not (folder / RUN).exists():
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                with suppress(OSError):  # it holds other files
                    parent.rmdir()


def holds_run(folder: Path) -> bool:
    """Whether a folder contains a run or a saved model."""
    return (folder / RUN).exists() or (folder / CONFIG).exists()


@contextmanager
def beginning(folder: Path, overwrite: bool) -> Iterator[None]:
    """Context in which a new run is started in the folder; if that fails, the run that the folder held before is restored."""
    mark, old = folder / BEGUN, folder / OLD
    if old.exists() and not (folder / RUN).exists():  # another process was killed in here
        _put_back(folder)
    there = [name for name in OURS if (folder / name).exists()]
    if holds_run(folder) and not overwrite:
        raise FormersError(
            f"{folder} contains a run: continue it with `formers resume {folder}`, give another --out, or --overwrite to replace it."
        )
    if there and not holds_run(folder) and not mark.exists():
        raise FormersError(f"{folder} contains {there[0]}, which is not part of a run and would be replaced: give another --out.")
    if mark.exists():
        _remove(folder, OURS)  # of a run that never started
    mark.touch()
    old.mkdir(exist_ok=True)
    for name in there:
        if (folder / name).exists():
            (folder / name).replace(old / name)
    try:
        yield
    finally:
        if not (folder / RUN).exists():
            _put_back(folder)
        mark.unlink(missing_ok=True)


def begun(folder: Path) -> None:
    """Deletes the run that a new one has replaced."""
    _remove(folder, (OLD, BEGUN))


def _put_back(folder: Path) -> None:
    _remove(folder, OURS)
    for file in (folder / OLD).iterdir():
        file.replace(folder / file.name)
    _remove(folder, (OLD, BEGUN))


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def describe(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the description of a run, run.json and run.yaml."""
    import yaml

    sizes, settings = facts["sizes"], facts["settings"]
    chosen = {
        "member": facts["member"],
        **({"env": facts["env"]} if "env" in facts else {"data": facts["data"]}),
        **{name: value for name, value in facts["reading"].items() if value is not None},
        **{name: value for name, value in settings.items() if value is not None},
        **{name: value for name, value in sizes.items() if name not in settings},
    }
    if both := {name: value for name, value in sizes.items() if name in settings}:  # such as training steps and depth steps
        chosen["member_sizes"] = both
    chosen |= {name: facts[name] for name in ("preset", "from") if facts[name] is not None}
    try:
        write(folder / YAML, yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).encode())
        write(folder / RUN, to_json({**facts, **({"results": finite(facts["results"])} if "results" in facts else {})}))
    except OSError as error:
        raise FormersError(f"{folder} cannot be written to ({error.strerror}): free the disk, or make the folder writable.") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """The description of a run, from run.json."""
    try:
        facts = json.loads((folder / RUN).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FormersError(f"{folder} is not a run: it has no {RUN}; give a folder that `formers train` wrote.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormersError(f"{folder / RUN} cannot be read ({str(error).splitlines()[0]}): restore a copy, or train again.") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise FormersError(f"{folder / RUN} has the format {found!r}, not {FORMAT!r}: use the version of formers that wrote it.")
    for name in FACTS:
        if name not in facts:
            raise FormersError(f"{folder / RUN} has no {name}: restore it from a copy, or train again.")
    return facts


def is_agent(folder: Path) -> bool:
    """Whether a folder holds the run of an agent."""
    return (folder / RUN).exists() and "env" in read_facts(folder)


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries."""
    import numpy

    return {
        "formers": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }


def command() -> list[str]:
    """The command that started the run."""
    return list(sys.argv)
