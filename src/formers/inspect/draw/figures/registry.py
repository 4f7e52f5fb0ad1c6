"""A figure by its name: which options it takes, what it shows, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from formers.core import FormersError, nearest
from formers.family.members import member as find_member
from formers.inspect.draw.figure import save_figure, write_caption
from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject
from formers.inspect.draw.figures.catalogue import FIGURES, Entry


def save_named_figure(name: str, path: str | Path, options: Mapping[str, Any] | None = None, run: Path | None = None) -> DrawnFigure:
    """Writes the figure of a name, .png or .svg, and returns what was drawn.

    options: those of the figure, those of the member that it is drawn from (None leaves a default of the figure out), and `member`,
    another one.
    run: a folder whose model is drawn in place of a member.
    """
    entry = find_figure(name)
    figure, subject = _chosen(name, entry, dict(options or {}), run)
    drawn = figure.draw(subject, Path(path))
    write_caption(drawn.figure, drawn.caption)
    save_figure(drawn.figure, path, title=entry.shows)
    return drawn


def figure_facts(name: str) -> dict[str, Any]:
    """What a figure shows, its equations, its options and what else shows it, ready for JSON."""
    entry = find_figure(name)
    return {
        "name": name,
        "shows": entry.shows,
        "equations": list(entry.equations),
        "member": entry.member or None,
        "options": figure_options(name),
        "verb": entry.verb or None,
    }


def figure_options(name: str) -> dict[str, Any]:
    """The options of a figure with their defaults; those of its member are beside them where they are set."""
    entry = find_figure(name)
    own = {option: list(value) if isinstance(value, tuple) else value for option, value in dict(_class(entry)()).items()}
    return {**({"member": entry.member} if entry.member else {}), **own, **entry.options}


def find_figure(name: str) -> Entry:
    """The entry of a name; refuses one that there is not, with the nearest that there is."""
    if name not in FIGURES:
        raise FormersError(f"there is no figure {name!r}: {nearest(name, FIGURES)}")
    return FIGURES[name]


def _class(entry: Entry) -> type[Figure]:
    module, _, cls = entry.code.partition(".")
    found: type[Figure] = getattr(import_module(f"formers.inspect.draw.figures.{module}"), cls)
    return found


def _chosen(name: str, entry: Entry, options: dict[str, Any], run: Path | None) -> tuple[Figure, FigureSubject]:
    """The figure with its options, and what it is drawn from with the others."""
    cls = _class(entry)
    if run is not None and not entry.member:
        raise FormersError(f"--run {run} has no part in the figure {name}, which draws no model: leave it out.")
    member = str(options.pop("member", entry.member)) if entry.member else ""
    known = list(find_member(member).options) if member else []
    own = {option: options.pop(option) for option in list(options) if option in cls.model_fields}
    for option, value in options.items():
        if option not in known:
            raise FormersError(f"the figure {name} has no option {option!r}: {nearest(option, [*cls.model_fields, *known])}")
        if run is not None:
            raise FormersError(f"{option}={value} is of a new {member}, and {run} is drawn: leave one of them out.")
    # The defaults are made for the figure's own member; another one has its own.
    defaults = {option: value for option, value in entry.options.items() if option in known}
    chosen = {option: value for option, value in {**defaults, **options}.items() if value is not None}
    return cls(**own), FigureSubject(member, {} if run is not None else chosen, run)
