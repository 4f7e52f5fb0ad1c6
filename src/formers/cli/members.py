"""`formers members`: who belongs to the family."""

from __future__ import annotations

from typing import Annotated

import typer


def members(json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")] = False) -> None:
    """List the members with their presets."""
    from json import dumps

    from rich.console import Console

    from formers.inspect import list_members, members_facts

    if json:
        typer.echo(dumps(members_facts()))
        return
    console = Console()
    console.print(list_members(console.encoding))
