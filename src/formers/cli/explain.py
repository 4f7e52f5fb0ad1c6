"""`formers explain`: the parts, executors and costs of a member or a run."""

from __future__ import annotations

from typing import Annotated

import typer

from formers.cli.common import Json, MemberPreset, MemberSet, MemberVocab, print_json
from formers.cli.complete import complete_member
from formers.cli.options import parse_set


def explain(
    members: Annotated[
        list[str],
        typer.Argument(
            metavar="MEMBER|RUN...",
            help="Members' names, or folders of runs; several stand side by side.",
            autocompletion=complete_member,
        ),
    ],
    preset: MemberPreset = None,
    set_: MemberSet = None,
    vocab: MemberVocab = None,
    length: Annotated[list[int] | None, typer.Option(help="A length to compute costs for; may be repeated; default 128 to 32,768.")] = None,
    batch: Annotated[int, typer.Option(help="How many rows are read at a time.")] = 1,
    device: Annotated[
        str, typer.Option(help="The device whose executors are explained: cpu, cuda, mps, xpu; it need not be present.")
    ] = "cpu",
    json: Json = False,
) -> None:
    """Explain MEMBER, or what a RUN trained: parts, executors and why not others, parameters, FLOPs and memory against length."""
    from rich.console import Console

    from formers.inspect import explain_facts, explanation, subject
    from formers.inspect.draw.side_by_side import refuse_options, side_by_side

    options = parse_set(set_ or [])
    refuse_options(members, options)
    subjects = [subject(member, vocab, preset, options) for member in members]
    facts = [explain_facts(what, length or [], batch, device) for what in subjects]
    if json:
        print_json(facts[0] if len(facts) == 1 else {"members": facts})
        return
    console = Console(highlight=False)
    console.print(explanation(subjects[0], facts[0], console.encoding) if len(facts) == 1 else side_by_side(facts))
