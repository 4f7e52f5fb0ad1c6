"""Pieces of HTML. Whatever comes from code or help texts is escaped here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

TAG = re.compile(r"(<[^>]*>)")
OPAQUE = re.compile(r"<(/?)(a|code|pre|h[1-6]|script|style|button|label)\b")


def inline(text: str) -> str:
    """Words with `names` in them."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def prose(doc: str | None) -> str:
    """A docstring: paragraphs, and what is aligned by spaces as it stands."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc or ""))
    return "".join(
        f"<pre>{escape(b, quote=False)}</pre>" if re.search(r"^ |\S {3}", b, re.MULTILINE) else f"<p>{inline(b)}</p>" for b in blocks
    )


def first_sentence(doc: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(re.split(r"\n\s*\n", inspect.cleandoc(doc or ""))[0].split())


def python(code: str) -> str:
    """A few lines of highlighted Python."""
    return f'<div class="highlight"><pre><code>{highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()}</code></pre></div>'


def lines(code: str, file: str) -> list[str]:
    """The highlighted lines of a file; none holds a tag that another closes."""
    try:
        lexer = get_lexer_for_filename(file, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return highlight(code, lexer, HtmlFormatter(nowrap=True)).splitlines()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def in_text(page: str, pattern: re.Pattern[str], change: Callable[[str], str]) -> str:
    """HTML with a pattern replaced in its words only: not in tags, links, code or headings."""
    pieces, inside = TAG.split(page), 0
    for at, piece in enumerate(pieces):
        opaque = OPAQUE.match(piece)
        if opaque:
            inside += -1 if opaque[1] else 1
        elif not inside and not piece.startswith("<"):
            pieces[at] = pattern.sub(lambda match: change(match[0]), piece)
    return "".join(pieces)
