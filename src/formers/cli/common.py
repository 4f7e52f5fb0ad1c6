"""Options that several verbs share, and output: a table, or one line of JSON."""

from __future__ import annotations

import json as text
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from formers.cli.complete import complete_member_set, complete_preset, complete_run, complete_set

Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A size or setting, e.g. layers=8; may be repeated.", autocompletion=complete_set),
]
Run = Annotated[Path, typer.Argument(help="A run, or any folder that save_pretrained wrote.", autocompletion=complete_run)]
MemberPreset = Annotated[
    str | None, typer.Option(help="A configuration of the member; base is the paper's.", autocompletion=complete_preset)
]
MemberSet = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the member, e.g. layers=8.", autocompletion=complete_member_set),
]
MemberVocab = Annotated[int | None, typer.Option(help="Size of the vocabulary; 256 (bytes) unless the preset has another.")]
Device = Annotated[str, typer.Option(help="The device to compute on: cpu, cuda, cuda:1, mps; auto takes the best available.")]
OwnDevice = Annotated[
    str | None,
    typer.Option(help="The device to compute on: cpu, cuda, cuda:1, mps; auto takes the best available; the run's unless given."),
]
Check = Annotated[bool, typer.Option("--check", help="Exit with code 1 if a stated figure is missed.")]

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write a picture, .png or .svg, instead of drawing in the terminal.")]
Split = Annotated[str | None, typer.Option(help="Which part of the data: valid, test or train; the held-out one unless given.")]

DIGITS = {"seconds": 1, "start_seconds": 1}
"""Decimal places of figures that do not need four."""


def print_json(facts: object) -> None:
    """Prints one line of JSON."""
    print(text.dumps(facts))


def notice(line: str) -> None:
    """Prints a line on standard error, unless -q is given."""
    from formers.data.progress import silent

    if not silent():
        print(line, file=sys.stderr)


def wrote(path: Path, json: bool) -> None:
    """Prints the path of a written figure; as a notice if standard output is for JSON."""
    (notice if json else print)(f"wrote {path}")


def check_file(out: Path | None, known: tuple[str, ...]) -> None:
    """Raises before any computation if a file cannot be written: wrong suffix, missing folder, or no plotting library."""
    if out is None:
        return
    from importlib.util import find_spec

    from formers.core import FormersError

    if out.suffix.lower() not in known:
        raise FormersError(f"{out.name!r} is no name for this: end it in {', '.join(known[:-1])} or {known[-1]}.")
    if not out.parent.is_dir():
        raise FormersError(f"cannot write {str(out)!r}: there is no folder {str(out.parent)!r}; create it, or choose another.")
    if out.suffix.lower() in (".png", ".svg") and find_spec("matplotlib") is None:
        raise FormersError(f"a picture like {out.name!r} needs matplotlib: pip install matplotlib.")


def report(results: Mapping[str, object], json: bool) -> None:
    """Prints results, one per line, or as one JSON object in the last line."""
    if json:
        print_json(results)
        return
    width = max(len(name) for name in results)
    for name, value in results.items():
        print(f"{name.replace('_', ' '):<{width}}  {_word(name, value)}")


def _word(name: str, value: object) -> str:
    if isinstance(value, float):
        if abs(value) >= 1e9:
            return f"{value:.3g}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{DIGITS.get(name, 4)}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
