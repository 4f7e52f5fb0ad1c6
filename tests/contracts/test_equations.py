"""Equations are numbered in EQUATIONS.md, and each number stands on the lines of exactly one source file."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import formers

SOURCE = Path(formers.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "EQUATIONS.md"
COMMENT = re.compile(r"#\s*(E\d+(?:,\s*E\d+)*)\s*$")


def in_comments(text: str) -> set[str]:
    """The ids in the trailing comments of a source text; a docstring is no comment."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        if match and token.line[: token.start[1]].strip():
            found |= set(re.split(r",\s*", match[1]))
    return found


@cache
def homes() -> dict[str, list[str]]:
    """The source files that each id stands in."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for name in in_comments(file.read_text()):
            places[name].append(str(file.relative_to(SOURCE)))
    return places


def document() -> set[str]:
    if not DOCUMENT.exists():
        pytest.skip("EQUATIONS.md is not written yet")
    return set(re.findall(r"\bE\d+\b", DOCUMENT.read_text()))


def test_ids_are_read_from_trailing_comments_only() -> None:
    assert in_comments('"""y = x  E1"""\ny = x  # E2\nz = y  # E3, E4\n# E5\nw = "# E6"\nv = w  # as in E7\n') == {"E2", "E3", "E4"}


def test_every_id_stands_in_exactly_one_source_file() -> None:
    assert homes(), "no line of the source names its equation"
    assert {name: files for name, files in homes().items() if len(files) > 1} == {}


def test_every_equation_of_the_document_is_computed_somewhere() -> None:
    assert document() - set(homes()) == set()


def test_every_id_in_the_source_is_documented() -> None:
    assert set(homes()) - document() == set()
