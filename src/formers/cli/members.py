"""`formers members`: who belongs to the family."""

from __future__ import annotations

from formers.cli.common import Json, print_json


def members(json: Json = False) -> None:
    """List the members with their presets."""
    from rich.console import Console

    from formers.inspect import list_members, members_facts

    if json:
        print_json(members_facts())
        return
    console = Console()
    console.print(list_members(console.encoding))
