"""Pictures fill the width of the page, and a click shows them at their own size; without a script, the click opens the file."""

from __future__ import annotations

import re

IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]+)"[^>]*>')


def enlargeable(html: str) -> str:
    """A page's HTML with each picture inside a link to its file; assets/enlarge.js opens it in the page."""
    return IMAGE.sub(lambda m: f'<a class="enlarge" href="{m[1]}" title="click to enlarge">{m[0]}</a>', html)
