"""A run's folder: who may write in it, and what it says of itself.

RUN/run.json        member, data and its fingerprint, sizes, settings, versions, command; at the end the results
RUN/run.yaml        the same choices for `formers train --config`
RUN/metrics.jsonl   a line for each step and each judgement
RUN/ckpt/           checkpoints
RUN/bad/            batches whose loss or gradient was not finite
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from formers import __version__
from formers.core import FormersError
from formers.model.files import CHECKPOINTS, MANIFEST, to_json, write
from formers.model.save import CONFIG, TOKENIZER, WEIGHTS
from formers.training.log import METRICS, finite

RUN, YAML, LOCK, BAD = "run.json", "run.yaml", "lock", "bad"
FORMAT = "formers/run/1"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Within it no other process trains in the folder, which is made if need be; one left without a run goes again."""
    from filelock import FileLock, Timeout

    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise FormersError(f"another process is training in {folder}: wait for it, or give another --out.") from None
    except (OSError, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or error
        raise FormersError(f"{folder} cannot be written to ({why}): give another --out.") from None
    try:
        yield
    finally:
        lock.release()
        if folder in made and not (folder / RUN).exists():
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                with suppress(OSError):  # somebody has put something there
                    parent.rmdir()


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run, or a saved model."""
    return (folder / RUN).exists() or (folder / CONFIG).exists()


def clear(folder: Path) -> None:
    """Removes the run that a folder holds."""
    for name in (RUN, YAML, METRICS, CONFIG, WEIGHTS, TOKENIZER, MANIFEST, "wandb-id", "mlflow-id"):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, BAD, "tensorboard", "wandb"):
        shutil.rmtree(folder / name, ignore_errors=True)


def describe(folder: Path, facts: dict[str, Any]) -> None:
    """Writes what a run says of itself."""
    import yaml

    chosen = {
        "member": facts["member"],
        "data": facts["data"],
        **{name: value for name, value in facts["reading"].items() if value is not None},
        **{name: value for name, value in facts["settings"].items() if value is not None},
        **facts["sizes"],
    }
    chosen |= {name: facts[name] for name in ("preset", "from") if facts[name] is not None}
    try:
        write(folder / YAML, yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).encode())
        write(folder / RUN, to_json({**facts, **({"results": finite(facts["results"])} if "results" in facts else {})}))
    except OSError as error:
        raise FormersError(f"{folder} cannot be written to ({error.strerror}): free the disk, or give another --out.") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """What a run says of itself."""
    try:
        facts = json.loads((folder / RUN).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FormersError(f"{folder} is not a run: it has no {RUN}; give a folder that `formers train` wrote.") from None
    except (OSError, ValueError) as error:
        raise FormersError(f"{folder / RUN} cannot be read ({error}): take it from a copy, or train again.") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise FormersError(f"{folder / RUN} is of format {found!r}, not {FORMAT!r}: use the formers that wrote it.")
    return facts


def versions() -> dict[str, str]:
    """What made the run, besides its settings."""
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
    """The command that began the run."""
    return list(sys.argv)
