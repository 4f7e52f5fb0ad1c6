"""`formers show`: attention, patterns, positions, learned spans, buckets, ponder times, members, ...: in the terminal or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from formers.cli import measure
from formers.cli.buckets import buckets
from formers.cli.common import Json, MemberPreset, MemberSet, MemberVocab, Out, Run, check_file, print_json, wrote
from formers.cli.complete import complete_member, complete_pattern, complete_pattern_set
from formers.cli.interaction import interaction
from formers.cli.options import parse_set
from formers.cli.ponder import ponder

if TYPE_CHECKING:
    from rich.console import Console

    from formers.inspect import View

app = typer.Typer(
    help="Draw attention, an alignment, a pattern, positions, spans, buckets, ponder times, interaction, losses, context, a member.",
    no_args_is_help=True,
)
app.command("buckets")(buckets)
app.command("ponder")(ponder)
app.command("interaction")(interaction)
app.command("losses")(measure.losses)
app.command("context")(measure.context)


@app.command()
def pattern(
    name: Annotated[str, typer.Argument(help="The pattern's name, e.g. causal.", autocompletion=complete_pattern)],
    length: Annotated[int, typer.Option(help="How many positions to draw.")] = 32,
    heads: Annotated[int, typer.Option(help="How many heads; those that differ are drawn one by one.")] = 1,
    layer: Annotated[int, typer.Option(help="Which layer, counted from 0.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the pattern, e.g. window=8.", autocompletion=complete_pattern_set),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw who attends to whom: a row for each query, a mark for each key it sees."""
    from formers.inspect import draw_pattern, pattern_facts, pattern_named, save_pattern

    chosen = pattern_named(name, parse_set(set_ or []))
    if out is not None:
        wrote(save_pattern(chosen, out, length, heads, layer), json)
    if json:
        print_json(pattern_facts(chosen, length, heads, layer))
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
    json: Json = False,
) -> None:
    """Draw the sinusoidal positions, or those of a run: a row for each position, a column for each dimension."""
    from formers.core import FormersError
    from formers.inspect import draw_positions, positions_facts, run_table, save_positions, sinusoid_table

    if run is not None and dim is not None:
        raise FormersError(f"--dim {dim} is of sinusoids, and {run} has a width of its own: leave one of them out.")
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


Target = Annotated[str | None, typer.Option(help="An encoder-decoder's target; what it writes, the likeliest, unless given.")]
Layer = Annotated[int | None, typer.Option(help="Which layer, counted from 0; the mean of all unless given.")]
Head = Annotated[int | None, typer.Option(help="Which head, counted from 0; the mean of all unless given.")]
Checkpoint = Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights: last or best.")]
PAGE = ".html"


@app.command()
def attention(
    run: Run,
    text: Annotated[str, typer.Option(help="What the model reads; an encoder-decoder's source.")],
    target: Target = None,
    layer: Layer = None,
    head: Head = None,
    view: Annotated[str | None, typer.Option(help="Whose attention: self, encoder or cross; the last that there is unless given.")] = None,
    checkpoint: Checkpoint = "last",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a page, .html, or a picture, .png or .svg, instead of drawing here."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw which tokens the model of RUN attends to: a page of all layers and heads, a picture, or a map in the terminal."""
    from formers.inspect import attention_facts, find_view, save_attention_page, save_heads, save_map, views_of
    from formers.model import load

    check_file(out, (PAGE, ".png", ".svg"))
    model = load(run, "cpu", checkpoint)
    views = views_of(model, text, target)
    place = find_view(views, view)
    chosen, name = views[place], _named(model.spec.name, run)
    chosen.chosen(layer, head)  # refuses what there is none of
    if out is not None:
        if out.suffix.lower() == PAGE:
            written = save_attention_page(views, out, name, layer or 0, head, place)
        elif layer is None and head is None:
            written = save_heads(chosen, out, name)
        else:
            written = save_map(chosen, out, layer, head, name)
        wrote(written, json)
    if json:
        print_json({"model": name, "views": [attention_facts(v) for v in ([chosen] if view else views)]})
    elif out is None:
        _print_map(chosen, layer, head)
        print(" --out attention.html writes a page with every layer and head.")


@app.command()
def alignment(
    run: Run,
    text: Annotated[str, typer.Option(help="The source.")],
    target: Target = None,
    layer: Layer = None,
    head: Head = None,
    words: Annotated[bool, typer.Option("--words/--tokens", help="A row and a column for each word, or for each token.")] = True,
    checkpoint: Checkpoint = "last",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw which source words an encoder-decoder looks at to write each target word: its cross-attention."""
    from formers.core import FormersError
    from formers.inspect import alignment_of, attention_facts, by_words, find_view, save_map, views_of
    from formers.model import Seq2Seq, load

    check_file(out, (".png", ".svg"))
    model = load(run, "cpu", checkpoint)
    if not isinstance(model, Seq2Seq):
        raise FormersError(f"{model.spec.name or run} has no cross-attention, so nothing to align: use a run of transformer or seq2seq.")
    views = views_of(model, text, target)
    seen = alignment_of(views[find_view(views, "cross")])
    aligned = by_words(seen) if words else seen
    aligned.chosen(layer, head)  # refuses what there is none of
    if out is not None:
        wrote(save_map(aligned, out, layer, head, _named(model.spec.name, run)), json)
    if json:
        print_json({"model": _named(model.spec.name, run), **attention_facts(aligned)})
    elif out is None:
        _print_map(aligned, layer, head)


@app.command()
def spans(
    run: Run,
    text: Annotated[str | None, typer.Option(help="What the model reads, where every token has spans of its own (dynamic).")] = None,
    checkpoint: Checkpoint = "last",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw how far back each head of RUN has learnt to look, and what that saves."""
    from formers.inspect import draw_spans, save_spans, spans_facts, spans_of
    from formers.model import load

    check_file(out, (".png", ".svg"))
    model = load(run, "cpu", checkpoint)
    seen = spans_of(model, text, _named(model.spec.name, run))
    if out is not None:
        wrote(save_spans(seen, out), json)
    if json:
        print_json(spans_facts(seen))
    elif out is None:
        console = _console()
        console.print(draw_spans(seen, console.width, console.encoding), soft_wrap=True, markup=False, emoji=False)


def _named(member: str | None, run: Path) -> str:
    """A model in a caption: its member and the folder it comes from."""
    return ", ".join(word for word in (member, run.resolve().name) if word)


def _print_map(view: View, layer: int | None, head: int | None) -> None:
    from formers.inspect import draw_map

    console = _console()
    console.print(draw_map(view, layer, head, console.width, console.encoding), soft_wrap=True, markup=False, emoji=False)
