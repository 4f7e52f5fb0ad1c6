"""The source inside the site: every line has an anchor, and the number of an equation leads back to it."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable
from html import escape

from docsite.equations import MENTION, numbers, places
from docsite.markup import first_sentence, inline, lines, table
from docsite.repository import EQUATIONS, FILES, HOME, REFERENCE, read

SPOKEN = re.compile(r'(<span class="(?:c1|sd)">)(.*?)(</span>)')
UNLISTED = "---\nsearch:\n  exclude: true\nhide:\n  - navigation\n  - toc\n---\n\n"
"""The front matter of a page that search leaves out: it would find every line of code before the page that explains it."""


def page_of(file: str) -> str:
    """The page that holds the copy of a file."""
    return f"{file}.md"


def url_of(file: str, page: str) -> str:
    """The address of a repository's file, or of a page, seen from the page of another."""
    target = file.removesuffix(".md") if file.endswith(".md") else file
    return posixpath.relpath("index.html" if file == HOME else f"{target}.html", posixpath.dirname(page) or ".")


def top(file: str) -> str:
    """The page of a file as Markdown, without its code."""
    ways = (
        ("Home", HOME, ""),
        ("Equations", EQUATIONS, ""),
        ("Python reference", REFERENCE, ""),
        ("All files", FILES, f"#{folder_of(file)}"),
    )
    above = " · ".join(f'<a href="{url_of(to, page_of(file))}{anchor}">{name}</a>' for name, to, anchor in ways)
    here = sorted({(place.line, name) for name, found in places().items() for place in found if place.file == file})
    equations = url_of(EQUATIONS, page_of(file))
    computed = ", ".join(f'<a href="{equations}#{name}">{name}</a> at <a href="#L{n}">line {n}</a>' for n, name in here)
    return f'{UNLISTED}# {plain(file)}\n\n<p class="about">{above}</p>\n\n' + (f"<p>Computes {computed}.</p>\n" if computed else "")


def code(file: str) -> list[str]:
    """The lines of a file as HTML; line 7 has the anchor L7."""
    equations = url_of(EQUATIONS, page_of(file))
    found = []
    for n, line in enumerate(lines(read(file), file), start=1):
        number = f'<a class="number" href="#L{n}" data-line="{n}" aria-label="line {n}"></a>'
        found.append(f'<span class="line" id="L{n}">{number}{_linked(line, equations)}\n</span>')
    return found


def _linked(line: str, equations: str) -> str:
    """A highlighted line with links from the numbers in its comment or docstring."""

    def link(match: re.Match[str]) -> str:
        return f'<a class="equation" href="{equations}#{match[0]}">{match[0]}</a>' if match[0] in numbers() else match[0]

    return SPOKEN.sub(lambda m: m[1] + MENTION.sub(link, m[2]) + m[3], line)


def listing(files: Iterable[str]) -> str:
    """The page that lists the copied files by folder, each with the first sentence of its docstring."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(folder_of(file), []).append(file)
    pieces = ["---\nsearch:\n  exclude: true\n---\n\n# Files\n\nThe library and its tests, as they were when this site was built.\n"]
    beside = folders.pop(".", [])
    for folder, inside in [*sorted(folders.items()), (".", beside)]:
        rows = [(f'<a href="{url_of(f, FILES)}">{escape(posixpath.basename(f))}</a>', inline(_about(f))) for f in inside]
        pieces.append(
            f"## {plain(folder) if folder != '.' else 'Beside them'} {{ #{folder} }}\n\n{table(('file', 'what it holds'), rows)}\n"
        )
    return "\n".join(pieces)


def folder_of(file: str) -> str:
    return posixpath.dirname(file) or "."


def plain(path: str) -> str:
    """A path as Markdown: no underscore of it begins an emphasis."""
    return path.replace("_", "\\_")


def _about(file: str) -> str:
    return first_sentence(ast.get_docstring(ast.parse(read(file)))) if file.endswith(".py") else ""
