"""`formers show attention` and `formers show alignment`: which tokens or pixels a model attends to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from formers.cli.common import Device, Json, Out, Run, check_file, notice, print_json, wrote
from formers.cli.options import parse_pixel

if TYPE_CHECKING:
    from formers.inspect import View
    from formers.model import Model

Target = Annotated[str | None, typer.Option(help="An encoder-decoder's target; default: its greedy output.")]
Layer = Annotated[int | None, typer.Option(help="The layer, counted from 0; default: the mean of all.")]
Head = Annotated[int | None, typer.Option(help="The head, counted from 0; default: the mean of all.")]
Checkpoint = Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights: last or best.")]
PAGE = ".html"


def attention(
    run: Run,
    text: Annotated[str | None, typer.Option(help="What the model reads; an encoder-decoder's source.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="FILE", help="What a model of images reads: an image, or SET:NUMBER, e.g. digits:7.")
    ] = None,
    pixel: Annotated[str | None, typer.Option(metavar="ROW,COLUMN", help="The query pixel; default: one in the middle.")] = None,
    channel: Annotated[int | None, typer.Option(help="Which channel value of the pixel, where each is predicted by itself.")] = None,
    class_: Annotated[
        str | None, typer.Option("--class", help="The image's class, its name or number, where the model is conditioned on it.")
    ] = None,
    target: Target = None,
    layer: Layer = None,
    head: Head = None,
    view: Annotated[str | None, typer.Option(help="The attention to show: self, encoder or cross; default: the last.")] = None,
    checkpoint: Checkpoint = "last",
    device: Device = "cpu",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a page, .html, or a picture, .png or .svg, instead of drawing here."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw which tokens or pixels the model of RUN attends to: a page of all layers and heads, a picture, or a map in the terminal."""
    from formers.core import FormersError
    from formers.model import load
    from formers.training.device import pick_device

    check_file(out, (PAGE, ".png", ".svg"))
    if (text is None) == (image is None):
        raise FormersError("show attention needs exactly one of --text and --image: give --image to a model of images, else --text.")
    for name, value, is_text in (
        ("pixel", pixel, False), ("channel", channel, False), ("class", class_, False), ("target", target, True), ("view", view, True),
    ):  # fmt: skip
        if value is not None and is_text != (text is not None):
            raise FormersError(f"--{name} {value} goes with --{'text' if is_text else 'image'}: leave it out.")
    model = load(run, pick_device(device), checkpoint)
    if text is not None:
        if model.spec.image is not None:
            raise FormersError(f"{run} is a model of images, which reads no text: use --image FILE --pixel ROW,COLUMN.")
        _of_text(model, run, text, target, layer, head, view, out, json)
    else:
        assert image is not None
        if model.spec.image is None:
            raise FormersError(f"{run} is not a model of images: use --text.")
        where = None if pixel is None else parse_pixel(pixel)
        _of_image(model, run, image, where, channel or 0, class_, layer, head, out, json)


def _of_text(
    model: Model,
    run: Path,
    text: str,
    target: str | None,
    layer: int | None,
    head: int | None,
    view: str | None,
    out: Path | None,
    json: bool,
) -> None:
    from formers.inspect import attention_facts, find_view, save_attention_page, save_heads, save_map, views_of

    views = views_of(model, text, target)
    place = find_view(views, view)
    chosen, name = views[place], named(model.spec.name, run)
    chosen.chosen(layer, head)  # raises for what does not exist
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


def _of_image(
    model: Model,
    run: Path,
    image: str,
    pixel: tuple[int, int] | None,
    channel: int,
    class_: str | None,
    layer: int | None,
    head: int | None,
    out: Path | None,
    json: bool,
) -> None:
    from formers.data.images.single import read_single
    from formers.generation.images import levels_of
    from formers.inspect.draw.image_attention import save_pixel_attention
    from formers.inspect.draw.image_attention_page import save_image_attention_page
    from formers.inspect.measure.image_attention import pixel_attention, pixel_attention_facts, shape_of

    page = out is not None and out.suffix.lower() == PAGE
    found = read_single(image, shape_of(model.spec), levels_of(model.spec))
    for line in found.notices:
        notice(f"formers: {line}")
    seen = pixel_attention(model, found.levels, pixel, channel, class_number(model, class_), every=page)
    name = named(model.spec.name, run)
    seen.chosen(layer, head)  # raises for a layer or head that does not exist
    if out is not None:
        save = save_image_attention_page(seen, out, name, layer or 0, head) if page else save_pixel_attention(seen, out, layer, head, name)
        wrote(save, json)
    if json:
        print_json({"model": name, **pixel_attention_facts(seen)})
    elif out is None:
        from rich.console import Console

        from formers.inspect.draw.image_attention import draw_pixel_attention
        from formers.inspect.draw.terminal_images import colours_of

        console = Console()
        colours = colours_of() if console.is_terminal else "none"
        print(draw_pixel_attention(seen, layer, head, console.width, console.encoding, colours))
        print(" --out attention.html writes a page with every layer, head and pixel.")


def class_number(model: Model, class_: str | None) -> int | None:
    """The number of a class that is given by its name or number."""
    from formers.core import FormersError

    if class_ is None:
        return None
    labels, names = model.spec.labels, model.labels or ()
    if labels is None:
        raise FormersError(f"--class {class_} is given, and {model.spec.name or 'the model'} is not conditioned on classes: leave it out.")
    if class_ in names:
        return names.index(class_)
    if class_.isdecimal() and int(class_) < labels:
        return int(class_)
    raise FormersError(f"there is no class {class_!r}: give one of {', '.join(names[:20]) if names else f'0 ... {labels - 1}'}.")


def alignment(
    run: Run,
    text: Annotated[str, typer.Option(help="The source.")],
    target: Target = None,
    layer: Layer = None,
    head: Head = None,
    words: Annotated[bool, typer.Option("--words/--tokens", help="A row and a column for each word, or for each token.")] = True,
    checkpoint: Checkpoint = "last",
    device: Device = "cpu",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw which source words an encoder-decoder looks at to write each target word: its cross-attention."""
    from formers.core import FormersError
    from formers.inspect import alignment_of, attention_facts, by_words, find_view, save_map, views_of
    from formers.model import Seq2Seq, load
    from formers.training.device import pick_device

    check_file(out, (".png", ".svg"))
    model = load(run, pick_device(device), checkpoint)
    if not isinstance(model, Seq2Seq):
        raise FormersError(f"{model.spec.name or run} has no cross-attention: use a run of transformer or seq2seq.")
    views = views_of(model, text, target)
    seen = alignment_of(views[find_view(views, "cross")])
    aligned = by_words(seen) if words else seen
    aligned.chosen(layer, head)  # raises for what does not exist
    if out is not None:
        wrote(save_map(aligned, out, layer, head, named(model.spec.name, run)), json)
    if json:
        print_json({"model": named(model.spec.name, run), **attention_facts(aligned)})
    elif out is None:
        _print_map(aligned, layer, head)


def named(member: str | None, run: Path) -> str:
    """A model in a caption: its member and the folder it comes from."""
    return ", ".join(word for word in (member, run.resolve().name) if word)


def _print_map(view: View, layer: int | None, head: int | None) -> None:
    from rich.console import Console

    from formers.inspect import draw_map

    console = Console(highlight=False)
    console.print(draw_map(view, layer, head, console.width, console.encoding), soft_wrap=True, markup=False, emoji=False)
