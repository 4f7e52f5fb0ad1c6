"""`formers explain`: the parts, executors and costs of a member or a run."""

from __future__ import annotations

from typing import Annotated

import typer

from formers.cli.common import Json, MemberPreset, MemberSet, MemberVocab, print_json
from formers.cli.complete import complete_member
from formers.cli.options import parse_set


def explain(
    member: Annotated[
        str, typer.Argument(metavar="MEMBER|RUN", help="A member's name, or the folder of a run.", autocompletion=complete_member)
    ],
    preset: MemberPreset = None,
    set_: MemberSet = None,
    vocab: MemberVocab = None,
    length: Annotated[list[int] | None, typer.Option(help="A length to compute costs for; may be repeated; default 128 to 32,768.")] = None,
    batch: Annotated[int, typer.Option(help="How many rows are read at a time.")] = 1,
    json: Json = False,
) -> None:
    """Explain MEMBER, or what a RUN trained: parts, executors and why not others, parameters, FLOPs and memory against length."""
    from rich.console import Console

    from formers.inspect import explain_facts, explanation, subject

    what = subject(member, vocab, preset, parse_set(set_ or []))
    facts = explain_facts(what, length or [], batch)
    if json:
        print_json(facts)
        return
    console = Console(highlight=False)
    console.print(explanation(what, facts, console.encoding))
