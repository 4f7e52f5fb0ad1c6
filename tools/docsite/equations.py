"""The numbered equations: the sections of EQUATIONS.md, and the lines of code that end in their numbers."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from docsite.repository import EQUATIONS, ROOT, read

HEADING = re.compile(r"^### (E\d+): .*$", re.MULTILINE)
SECTION_END = re.compile(r"^##+ ", re.MULTILINE)
NUMBERS = re.compile(r"#\s*(E\d+(?:,\s*E\d+)*)\s*$")
MENTION = re.compile(r"\bE\d+\b")


@dataclass(frozen=True)
class Place:
    """The statement that computes an equation: where it stands, and within which function."""

    file: str
    line: int
    """The one that ends in the number."""
    first: int
    """Where the statement begins; `line` unless it spans several."""
    function: str
    code: str


@cache
def numbers() -> tuple[str, ...]:
    """The numbers that EQUATIONS.md has a section for."""
    return tuple(HEADING.findall(read(EQUATIONS)))


@cache
def places() -> dict[str, list[Place]]:
    """Where each equation is computed."""
    found: dict[str, list[Place]] = defaultdict(list)
    for path in sorted((ROOT / "src/formers").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name, place in places_in(file, path.read_text(encoding="utf-8")):
            found[name].append(place)
    return dict(found)


def places_in(file: str, text: str) -> list[tuple[str, Place]]:
    """The equations that a file's text computes, by the numbers its lines end in."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = NUMBERS.match(token.string) if token.type == tokenize.COMMENT else None
        if match and token.line[: token.start[1]].strip():
            place = statement(file, text, token.start[0])
            found += [(name, place) for name in re.split(r",\s*", match[1])]
    return found


def statement(file: str, text: str, line: int) -> Place:
    """The simple statement that a line is of, or the line alone where it opens a block."""
    function, first, last = "", line, line
    for node in ast.walk(ast.parse(text)):  # outer nodes come before inner ones
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                function = f"{function}.{node.name}".lstrip(".")
            elif not hasattr(node, "body"):
                first, last = node.lineno, node.end_lineno or node.lineno
    code = textwrap.dedent("\n".join(text.splitlines()[first - 1 : last]))
    return Place(file, line, first, function, code)


def with_code(markdown: str) -> str:
    """EQUATIONS.md with an anchor at each equation, #E17, and the code that computes it below."""
    pieces, end = [], 0
    for match in HEADING.finditer(markdown):
        until = SECTION_END.search(markdown, match.end())
        stop = until.start() if until else len(markdown)
        body = markdown[match.end() : stop].rstrip()
        pieces += [markdown[end : match.start()], f"{match[0]} {{ #{match[1]} }}", body, "\n\n", shown(match[1])]
        end = stop
    return "".join([*pieces, markdown[end:]])


def shown(name: str) -> str:
    """The statements of an equation as Markdown, each with a link to its line."""
    blocks = []
    for place in places().get(name, []):
        where = f"Computed at [{place.file.removeprefix('src/formers/')}, line {place.line}]({place.file}#L{place.line})"
        where += f", in `{place.function}`:" if place.function else ":"
        blocks.append(f'{where}\n\n```python linenums="{place.first}"\n{place.code}\n```\n\n')
    return "".join(blocks)
