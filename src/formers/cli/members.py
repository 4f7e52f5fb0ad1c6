"""`formers members`: the members with their presets, read from the sources without loading torch."""

from __future__ import annotations

from formers.cli import names
from formers.cli.common import Json, print_json


def members(json: Json = False) -> None:
    """List the members with their presets."""
    known = names.members()
    if json:
        print_json([{"name": name, "about": each.about, "presets": each.presets} for name, each in known.items()])
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for title in ("member", "what it is", "presets"):
        table.add_column(title, overflow="fold")
    for name, each in known.items():
        about = each.about.encode(console.encoding, "replace").decode(console.encoding)
        table.add_row(*map(Text, (name, about, ", ".join(each.presets))))
    console.print(table)
