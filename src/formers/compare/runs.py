"""The runs of a comparison: each a process of its own, begun, gone on with, or found finished."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from formers.core import FormersError
from formers.data.progress import silent
from formers.model.files import newest
from formers.training.interrupts import terminable

DIVERGED = 3
"""The exit code of a training whose loss stopped being a number."""


class Diverging(FormersError):
    """A training whose loss stopped being a number."""


def is_other(run: Path, words: Sequence[str]) -> bool:
    """Whether a folder holds a run of a command that is not this one."""
    known = run_facts(run)
    return known is not None and command_of(known) != [*words]


def is_finished(run: Path, words: Sequence[str]) -> bool:
    """Whether a folder holds a run of just this command that has spent its budget."""
    known = run_facts(run)
    return known is not None and bool(known.get("finished")) and command_of(known) == [*words]


def next_words(run: Path, words: Sequence[str]) -> list[str]:
    """The command that a run needs next: to go on with what an interrupted one has saved, or to begin."""
    known = run_facts(run)
    if known is not None and command_of(known) == [*words] and newest(run, lambda _: None) is not None:
        return ["resume", str(run)]
    return [*words, *(["--overwrite"] if run.exists() else [])]


def run_facts(run: Path) -> dict[str, Any] | None:
    """What a run says of itself; None where there is no run."""
    try:
        found = json.loads((run / "run.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def command_of(facts: dict[str, Any]) -> list[str]:
    """The words of a run's command that say what is trained."""
    return [word for word in facts.get("command", [])[1:] if word not in ("--json", "--overwrite", "-q")]


def formers(*words: str) -> dict[str, Any]:
    """What a command of this library prints as JSON; its bars and messages go where this process's go.

    A signal that ends this process ends the command first, which saves its run.
    """
    quiet = ["-q"] if silent() else []
    command = [sys.executable, "-m", "formers", *words, *quiet, "--json"]
    with terminable(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:  # Ctrl-C has reached the command, too
            process.wait()
            raise
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode == DIVERGED:
        raise Diverging(f"`formers {shlex.join(words)}` diverged: see above.")
    if process.returncode:
        raise FormersError(
            f"`formers {shlex.join(words)}` ended with code {process.returncode}: see above what it says; runs that are done stay, and "
            "the same command goes on with the others."
        )
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures
