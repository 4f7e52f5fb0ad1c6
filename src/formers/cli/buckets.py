"""`formers show buckets`: the buckets of LSH attention over a text, and the keys that a query sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from formers.cli.common import Device, Json, MemberPreset, MemberSet, MemberVocab, Out, check_file, print_json, wrote
from formers.cli.complete import complete_data, complete_member
from formers.cli.options import parse_set

if TYPE_CHECKING:
    from torch import Tensor

    from formers.model import Model


def buckets(
    member: Annotated[
        str, typer.Argument(metavar="MEMBER|RUN", help="A member's name, or the folder of a run.", autocompletion=complete_member)
    ],
    text: Annotated[str | None, typer.Option(help="What the model reads.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data whose first held-out tokens the model reads, instead of a text.", autocompletion=complete_data)
    ] = None,
    length: Annotated[int | None, typer.Option(help="How many tokens of the data; the model's length unless given.", min=1)] = None,
    layer: Annotated[int | None, typer.Option(help="Which layer, counted from 0; the first with buckets unless given.")] = None,
    head: Annotated[int, typer.Option(help="Which head, counted from 0.")] = 0,
    round_: Annotated[int, typer.Option("--round", help="The hashing round to draw, counted from 0.")] = 0,
    preset: MemberPreset = None,
    set_: MemberSet = None,
    vocab: MemberVocab = None,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of a run's weights: last or best.")] = "last",
    device: Device = "cpu",
    out: Out = None,
    json: Json = False,
) -> None:
    """Draw the LSH buckets of a text, the pairs that share one, and the effect of a later token. A member has random weights."""
    check_file(out, (".png", ".svg"))
    from formers.inspect import buckets_facts, buckets_of, moved, moved_facts, save_buckets

    model, name = _opened(member, vocab, preset, set_ or [], checkpoint, device)
    seen = buckets_of(model, _tokens(model, text, data, length).to(next(model.parameters()).device), name)
    seen.chosen(layer, head, round_)  # raises for what does not exist
    if out is not None:
        wrote(save_buckets(seen, out, layer, head, round_), json)
        if not json:
            return
    move = moved(model, seen)
    if json:
        print_json({**buckets_facts(seen, layer, head, round_), "moved": moved_facts(move)})
        return
    from rich.console import Console

    from formers.inspect.draw.buckets import COLUMNS, columns_words, draw_buckets, layer_row
    from formers.inspect.draw.tables import add_row, new_table
    from formers.inspect.measure.buckets import figures

    console = Console(highlight=False)
    console.print(draw_buckets(seen, layer, head, round_, console.width, console.encoding), soft_wrap=True)
    table = new_table(*COLUMNS, right=len(COLUMNS) - 1)
    for each in seen.layers:
        add_row(table, *layer_row(each, figures(each), move))
    for shown in ("", table, "", columns_words(seen, move)):
        console.print(shown, markup=False, emoji=False)


def _opened(
    word: str, vocab: int | None, preset: str | None, options: list[str], checkpoint: Literal["last", "best"], device: str
) -> tuple[Model, str]:  # fmt: skip
    """The model of a run, or a new one of a member, always the same."""
    import torch

    from formers.family import MEMBERS
    from formers.inspect import subject
    from formers.model import build, load
    from formers.training.device import pick_device

    where = pick_device(device)
    what = subject(word, vocab, preset, parse_set(options))
    if word not in MEMBERS:
        return load(Path(word), where, checkpoint), ", ".join(w for w in (what.spec.name, Path(word).resolve().name) if w)
    torch.manual_seed(0)
    return build(what.spec).to(where), f"{word}, untrained"


def _tokens(model: Model, text: str | None, data: str | None, length: int | None) -> Tensor:
    """The tokens (1, n) of a text, or the first held-out ones of data."""
    import torch

    from formers.core import FormersError
    from formers.data import open_text, token_stream
    from formers.generation import tokenizer_of
    from formers.inspect.measure.buckets import TOKENS

    if (text is None) == (data is None):
        raise FormersError("give exactly one of --text and --data.")
    tokenizer = tokenizer_of(model)
    if data is not None:
        found = token_stream(open_text(data), "valid", tokenizer)[: length or min(model.spec.length, TOKENS)]
        return found.long()[None]
    if length is not None:
        raise FormersError(f"--length {length} is for --data, not --text: leave it out.")
    ids = tokenizer.encode(text or "")
    if not ids:
        raise FormersError("the text is empty: give at least one token.")
    return torch.tensor([ids])
