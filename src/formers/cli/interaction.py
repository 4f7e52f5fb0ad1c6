"""`formers show interaction`: sequential operations, and path lengths between two tokens, by length."""

from __future__ import annotations

from typing import Annotated

import typer

from formers.cli.common import Json, Out, check_file, print_json, wrote
from formers.cli.complete import complete_member
from formers.cli.options import parse_set

CAPTION = (
    "Left: the longest chain of operations of one pass, from the tokens to the logits. Right: the fewest operations that carry information "
    "from one token to another, for the worst pair. Members that agree at every length are one line."
)


def interaction(
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MEMBER[:NAME=VALUE,...]]...",
            help="Members, perhaps with options; default: all that read tokens.",
            autocompletion=complete_member,
        ),
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="A length to measure at; may be repeated; 16, 32, 64, 128 and 256 unless given.")
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure the sequential operations of MEMBERs and the shortest path between two tokens, and how both grow with the length."""
    check_file(out, (".png", ".svg"))
    from formers.family.variants import variant
    from formers.inspect.draw.curves import save_panels
    from formers.inspect.draw.interaction import interaction_panels
    from formers.inspect.measure.interaction import LENGTHS, check_lengths, interaction_facts, readers
    from formers.inspect.measure.interaction import interaction as measure
    from formers.training.log import progress_bar

    lengths = tuple(length) if length else LENGTHS
    check_lengths(lengths)
    chosen = [variant(word, parse_set) for word in members] if members else readers()
    found = []
    with progress_bar("measuring") as tick:
        for done, each in enumerate(chosen):
            found.append(measure(each, lengths))
            tick(done + 1, len(chosen))
    if out is not None:
        wrote(save_panels(interaction_panels(found), out, CAPTION), json)
    if json:
        print_json(interaction_facts(found))
        return
    if out is not None:
        return
    from rich.console import Console

    from formers.inspect.draw.interaction import COLUMNS, words_of
    from formers.inspect.draw.tables import add_row, new_table

    table = new_table(*COLUMNS)
    for column in (1, 3, 4):
        table.columns[column].justify = "right"
    for measured in found:
        add_row(table, *words_of(measured))
    console = Console(highlight=False)
    for shown in (table, "", _words(lengths[0], lengths[-1])):
        console.print(shown, markup=False)


def _words(first: int, last: int) -> str:
    return (
        f"At {first:,} to {last:,} tokens. operations: the longest chain of kernels from the tokens to the logits of one pass. path: the "
        "fewest operations that carry information from one token to another, for the worst pair; mean: for all pairs, at the last length. "
        "After the order: the slope of the last step in logarithms; O(n/k) grows by one with every k tokens."
    )
