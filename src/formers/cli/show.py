"""`formers show`: attention, patterns, positions, learned spans, buckets, ponder times, members, ...: in the terminal or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from formers.cli import measure
from formers.cli.attention import Checkpoint, alignment, attention, named
from formers.cli.buckets import buckets
from formers.cli.common import Device, Json, MemberPreset, MemberSet, MemberVocab, Out, Run, check_file, print_json, wrote
from formers.cli.complete import complete_member, complete_pattern, complete_pattern_set
from formers.cli.figures import figure
from formers.cli.interaction import interaction
from formers.cli.options import parse_pixel, parse_set, parse_size
from formers.cli.ponder import ponder

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Draw attention, alignments, patterns, positions, spans, buckets, ponder times, interaction, losses, context, members, figures.",
    no_args_is_help=True,
)
app.command("attention")(attention)
app.command("alignment")(alignment)
app.command("buckets")(buckets)
app.command("ponder")(ponder)
app.command("interaction")(interaction)
app.command("losses")(measure.losses)
app.command("context")(measure.context)
app.command("figure")(figure)


@app.command()
def pattern(
    name: Annotated[
        str, typer.Argument(help="A pattern, e.g. causal, or a member, e.g. image-transformer.", autocompletion=complete_pattern)
    ],
    length: Annotated[int | None, typer.Option(help="How many positions to draw; all of an image, else 32, unless given.")] = None,
    heads: Annotated[int, typer.Option(help="How many heads; those that differ are drawn one by one.")] = 1,
    layer: Annotated[int, typer.Option(help="Which layer, counted from 0.")] = 0,
    size: Annotated[
        str | None, typer.Option(metavar="HxW[xC]", help="Positions are the cells of an image of this size, row after row, e.g. 8x8.")
    ] = None,
    pixel: Annotated[
        str | None, typer.Option(metavar="ROW,COLUMN", help="Whose view to draw on an image; one in the middle unless given.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An option of the pattern or member, e.g. window=8.", autocompletion=complete_pattern_set
        ),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw an attention pattern: a row for each query, a mark for each key it sees; for images also the view of one pixel."""
    from formers.core import FormersError
    from formers.inspect import draw_pattern, pattern_facts, save_pattern
    from formers.inspect.draw.pattern_images import draw_on_image, save_on_image
    from formers.inspect.measure.pattern_images import on_image_facts, pattern_or_member

    chosen, image = pattern_or_member(name, parse_set(set_ or []), None if size is None else parse_size(size))
    where = None if pixel is None else parse_pixel(pixel)
    if image is None and where is not None:
        raise FormersError(f"--pixel {pixel} is for images, and {name} has no image: give --size, e.g. 8x8.")
    places = 32 if length is None else length
    if out is not None:
        wrote(
            save_pattern(chosen, out, places, heads, layer)
            if image is None
            else save_on_image(chosen, out, image, where, length, heads, layer),
            json,
        )
    if json:
        print_json(
            pattern_facts(chosen, places, heads, layer) if image is None else on_image_facts(chosen, image, where, length, heads, layer)
        )
    elif out is None:
        from rich.text import Text

        console = _console()
        look = (console.width, console.encoding)
        if image is None:
            drawing = Text(draw_pattern(chosen, places, heads, layer, *look))
        else:
            drawing = Text(draw_on_image(chosen, image, where, length, heads, layer, *look))
        drawing.highlight_regex("·+", "dim")
        console.print(drawing, soft_wrap=True)


@app.command()
def positions(
    length: Annotated[int | None, typer.Option(help="How many positions to draw; 64 unless given.")] = None,
    dim: Annotated[int | None, typer.Option(help="How many dimensions sinusoids have; 64 unless given.")] = None,
    run: Annotated[Path | None, typer.Option(help="Draw the positions that the model of this run adds, learned or not.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw the sinusoidal positions, or those of a run: a row for each position, a column for each dimension."""
    from formers.core import FormersError
    from formers.inspect import draw_positions, positions_facts, run_table, save_positions, sinusoid_table

    if run is not None and dim is not None:
        raise FormersError(f"--dim {dim} is for sinusoids, and {run} has its own width: leave one of them out.")
    table = sinusoid_table(64 if length is None else length, 64 if dim is None else dim) if run is None else run_table(run, length)
    if out is not None:
        wrote(save_positions(table, out), json)
    if json:
        print_json(positions_facts(table))
    elif out is None:
        console = _console()
        colour = console.color_system is not None and not console.no_color
        console.print(draw_positions(table, console.width, console.encoding, colour), soft_wrap=True)


@app.command()
def member(
    name: Annotated[
        str, typer.Argument(help="The member's name, e.g. decoder; `formers members` lists them.", autocompletion=complete_member)
    ],
    preset: MemberPreset = None,
    set_: MemberSet = None,
    vocab: MemberVocab = None,
    json: Json = False,
) -> None:
    """Describe a member: slots, sizes, parameters, one block drawn, and the options it takes."""
    from formers.inspect import describe_member, member_facts

    options = parse_set(set_ or [])
    if json:
        print_json(member_facts(name, vocab, preset, options))
        return
    console = _console()
    console.print(describe_member(name, vocab, preset, options, console.encoding))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@app.command()
def spans(
    run: Run,
    text: Annotated[str | None, typer.Option(help="What the model reads, where every token has its own spans (dynamic).")] = None,
    checkpoint: Checkpoint = "last",
    device: Device = "cpu",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw the learned span of each head of RUN, and the operations saved."""
    from formers.inspect import draw_spans, save_spans, spans_facts, spans_of
    from formers.model import load
    from formers.training.device import pick_device

    check_file(out, (".png", ".svg"))
    model = load(run, pick_device(device), checkpoint)
    seen = spans_of(model, text, named(model.spec.name, run))
    if out is not None:
        wrote(save_spans(seen, out), json)
    if json:
        print_json(spans_facts(seen))
    elif out is None:
        console = _console()
        console.print(draw_spans(seen, console.width, console.encoding), soft_wrap=True, markup=False, emoji=False)
