"""`formers show`: a pattern, the positions or a member, drawn in the terminal or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from formers.cli.options import parse_set

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help="Draw a pattern, the positions or a member.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a drawing.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write a picture, .png or .svg, instead of drawing in the terminal.")]


@app.command()
def pattern(
    name: Annotated[str, typer.Argument(help="The pattern's name, e.g. causal.")],
    length: Annotated[int, typer.Option(help="How many positions to draw.")] = 32,
    heads: Annotated[int, typer.Option(help="How many heads; those that differ are drawn one by one.")] = 1,
    layer: Annotated[int, typer.Option(help="Which layer, counted from 0.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the pattern, e.g. window=8.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw who attends to whom: a row for each query, a mark for each key it sees."""
    from formers.inspect import draw_pattern, pattern_facts, pattern_named, save_pattern

    chosen = pattern_named(name, parse_set(set_ or []))
    if out is not None:
        typer.echo(f"wrote {save_pattern(chosen, out, length, heads, layer)}", err=json)
    if json:
        _print_json(pattern_facts(chosen, length, heads, layer))
    elif out is None:
        from rich.text import Text

        console = _console()
        drawing = Text(draw_pattern(chosen, length, heads, layer, console.width, console.encoding))
        drawing.highlight_regex("·+", "dim")
        console.print(drawing, soft_wrap=True)


@app.command()
def positions(
    length: Annotated[int | None, typer.Option(help="How many positions to draw; 64 unless given.")] = None,
    dim: Annotated[int | None, typer.Option(help="How many dimensions sinusoids have; 64 unless given.")] = None,
    run: Annotated[Path | None, typer.Option(help="Draw what the model of this run adds to its stream, learned or not.")] = None,
    out: Out = None,
) -> None:
    """Draw the sinusoidal positions, or those of a run: a row for each position, a column for each dimension."""
    from formers.core import FormersError
    from formers.inspect import draw_positions, run_table, save_positions, sinusoid_table

    if run is not None and dim is not None:
        raise FormersError(f"--dim {dim} is of sinusoids, and {run} has a width of its own: leave one of them out.")
    table = sinusoid_table(64 if length is None else length, 64 if dim is None else dim) if run is None else run_table(run, length)
    if out is not None:
        typer.echo(f"wrote {save_positions(table, out)}")
        return
    console = _console()
    colour = console.color_system is not None and not console.no_color
    console.print(draw_positions(table, console.width, console.encoding, colour), soft_wrap=True)


@app.command()
def member(
    name: Annotated[str, typer.Argument(help="The member's name, e.g. decoder; `formers members` lists them.")],
    preset: Annotated[str | None, typer.Option(help="A configuration of the member; base is the paper's.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the member, e.g. layers=8.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Size of the vocabulary; 256 (bytes) unless the preset has another.")] = None,
    json: Json = False,
) -> None:
    """Describe a member: slots, sizes, parameters, one block drawn, and the options it takes."""
    from formers.inspect import describe_member, member_facts

    options = parse_set(set_ or [])
    if json:
        _print_json(member_facts(name, vocab, preset, options))
        return
    console = _console()
    console.print(describe_member(name, vocab, preset, options, console.encoding))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _print_json(facts: object) -> None:
    from json import dumps

    typer.echo(dumps(facts))
