"""HTML pages that work offline: one file with its script, style and data in it.

Script, style and frame are files of the folder `page`. A content security policy lets the browser run that script alone, by its hash,
and load nothing; the data are JSON in the page, and are only ever shown as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from formers import __version__
from formers.core import FormersError
from formers.model.files import write

ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""Characters that could end a script element, or begin another, as JSON escapes."""


def assemble_page(frame: str, script: str, styles: Sequence[str], title: str, data: Any) -> str:
    """A page as HTML, made of files of the folder `page` and of data."""
    code, style = _page_file(script), "".join(map(_page_file, styles))
    parts = {
        "title": html.escape(title),
        "version": html.escape(__version__),
        "script": code,
        "script_hash": _policy_hash(code),
        "style": style,
        "style_hash": _policy_hash(style),
        # ASCII, so that not even a line separator of Unicode is in it
        "data": json.dumps(data, separators=(",", ":")).translate(ESCAPED),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _page_file(frame))


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Writes a file, whole or not at all, and returns its path."""
    path = Path(path)
    try:
        write(path, content)
    except OSError as error:
        raise FormersError(f"cannot write {str(path)!r} ({error.strerror}): choose a folder that exists and is yours.") from None
    return path


def _page_file(name: str) -> str:
    return (resources.files("formers.inspect.draw") / "page" / name).read_text(encoding="utf-8")


def _policy_hash(text: str) -> str:
    """The SHA-256 hash by which a content security policy names a text."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
