"""The output of a bench: its tables, its results, and whether they are within their limits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from formers.cli.common import report

if TYPE_CHECKING:
    from rich.table import Table


def show(*shown: Table | str) -> None:
    """Prints tables and text, each followed by an empty line."""
    from rich.console import Console

    console = Console(highlight=False)
    for each in shown:
        console.print(each, markup=False)
        console.print()


def end(results: dict[str, Any], limits: dict[str, tuple[float, float]], check: bool, json: bool) -> None:
    """Prints the results; with check, reports each that is unknown or outside its limits; exit code 1 if one is outside."""
    unknown = [name for name in limits if results[name] is None]
    missed = [name for name, (low, high) in limits.items() if name not in unknown and not low <= results[name] <= high]
    report(results, json)
    if check:
        for name in unknown:
            print(f"not checked: {name} cannot be measured on this system", file=sys.stderr)
    if check and missed:
        for name in missed:
            print(f"missed: {name} = {results[name]:.4g} is outside {limits[name][0]:g} ... {limits[name][1]:g}", file=sys.stderr)
        raise typer.Exit(1)
