"""`formers show figure`: the figures that everybody knows, by name, drawn from a spec or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Json, check_file, print_json, wrote
from formers.cli.complete import complete_figure, complete_figure_set, complete_run
from formers.cli.options import parse_set


def figure(
    name: Annotated[
        str | None, typer.Argument(help="The figure's name, e.g. multi-head; without one, all are listed.", autocompletion=complete_figure)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", autocompletion=complete_figure_set,
            help="An option of the figure or of its member, e.g. layers=4, or member=gtrxl for another member.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Draw the model of this run instead of a new one.", autocompletion=complete_run)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The picture to write, .png or .svg.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Draw a figure of the literature from a member's spec or from a model: sublayers, blocks, patterns, masks, halting."""
    if name is None:
        _list(json)
        return
    check_file(out, (".png", ".svg"))
    from formers.core import FormersError
    from formers.inspect.draw.figures import figure_facts, save_named_figure

    facts = figure_facts(name)
    if out is not None:
        drawn = save_named_figure(name, out, parse_set(set_ or []), run)
        wrote(out, json)
        facts |= {"caption": drawn.caption, "values": drawn.values}
    elif set_ or run is not None:
        raise FormersError(f"nothing is drawn without a file: give --out {name}.svg, or leave --set and --run out.")
    if json:
        print_json(facts)
    elif out is None:
        _describe(facts)


def _list(json: bool) -> None:
    from formers.inspect.draw.figures import FIGURES, figure_facts

    if json:
        print_json([figure_facts(name) for name in FIGURES])
        return
    from rich.console import Console

    from formers.inspect.draw.tables import add_row, new_table

    table = new_table("figure", "what it shows", "equations")
    for name, entry in FIGURES.items():
        add_row(table, name, entry.shows, ", ".join(entry.equations))
    table.columns[0].no_wrap = True
    console = Console(highlight=False)
    console.print(table)
    console.print("formers show figure NAME --out NAME.svg draws one; without --out its options are told.", markup=False)


def _describe(facts: dict[str, object]) -> None:
    from rich.console import Console

    from formers.inspect.draw.tables import add_row, new_table

    options = facts["options"]
    assert isinstance(options, dict)
    table = new_table("option", "default")
    for option, value in options.items():
        add_row(table, option, "unset" if value is None else str(value))
    console = Console(highlight=False)
    equations = facts["equations"]
    assert isinstance(equations, list)
    words = [str(facts["shows"]), f"Equations: {', '.join(equations)}."]
    if facts["member"]:
        words.append(f"It takes the options of {facts['member']}, too.")
    if facts["verb"]:
        words.append(f"See also: {facts['verb']}.")
    name = facts["name"]
    for shown in (" ".join(words), "", table, "", f"formers show figure {name} --out {name}.svg"):
        console.print(shown, markup=False, emoji=False)
