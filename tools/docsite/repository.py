"""The files of the repository that have a page in the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME, EQUATIONS, CONTRIBUTING = "README.md", "EQUATIONS.md", "CONTRIBUTING.md"
COMMANDS, REFERENCE, FILES = "command-line.md", "reference.md", "files.md"
"""Pages that are generated."""
LINK = re.compile(r"\]\(([^)#\s]+)")


def read(path: str) -> str:
    """The text of a file, by its path in the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def documents() -> list[str]:
    """The pages that are written by hand."""
    return [HOME, EQUATIONS, CONTRIBUTING, *guides()]


def guides() -> list[str]:
    """The pages in docs/, in the order of the list that ends the README; the others behind, by name."""
    linked = LINK.findall(read(HOME).partition("\n## Further\n")[2])
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
    return sorted(found, key=lambda path: linked.index(path) if path in linked else len(linked))


def pictures() -> list[str]:
    """What else stands in docs/."""
    return sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*") if p.is_file() and p.suffix != ".md")


@cache
def sources() -> tuple[str, ...]:
    """The files that are copied into the site: the library, its tests, and whatever else a page links to."""
    code = {p.relative_to(ROOT).as_posix() for folder in ("src/formers", "tests", "tools") for p in (ROOT / folder).rglob("*.py")}
    for page in documents():
        for link in LINK.findall(read(page)):
            target = resolve(page, link)
            if target is not None and (ROOT / target).is_file() and not target.startswith("docs/") and not target.endswith(".md"):
                code.add(target)
    return tuple(sorted(code))


def resolve(page: str, link: str) -> str | None:
    """The path in the repository that a relative link of a page leads to; None where it leads out of it."""
    if re.match(r"[a-z]+:|/", link):
        return None
    target = ((ROOT / page).parent / link).resolve()
    return target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else None
