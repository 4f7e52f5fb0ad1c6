"""Pictures fill the width of the page, and a click shows them at their own size; without a script, the click opens the file."""

from __future__ import annotations

import posixpath
import re
import struct
from pathlib import Path

from docsite.repository import ROOT

IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]+)"[^>]*>')
PNG = b"\x89PNG\r\n\x1a\n"
WIDE = 1200
"""On a narrow screen a picture of more pixels than that keeps a readable width, and scrolls."""


def enlargeable(html: str, page: str) -> str:
    """A page's HTML with each picture inside a link to its file; assets/enlarge.js opens it in the page."""

    def link(match: re.Match[str]) -> str:
        found = size(ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1])))
        kind = "enlarge wide" if found is not None and found[0] > WIDE else "enlarge"
        picture = match[0] if found is None else match[0].replace("<img ", f'<img width="{found[0]}" height="{found[1]}" ', 1)
        return f'<a class="{kind}" href="{match[1]}" title="click to enlarge">{picture}</a>'

    return IMAGE.sub(link, html)


def size(path: Path) -> tuple[int, int] | None:
    """The width and height of a PNG file; None for anything else."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(24)
    return struct.unpack(">II", head[16:24]) if head.startswith(PNG) else None
