"""The files of the repository that have a page in the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME, EQUATIONS, CONTENTS = "README.md", "EQUATIONS.md", "docs/contents.md"
ROOT_PAGES = (HOME, EQUATIONS, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
COMMANDS, REFERENCE, FILES = "command-line.md", "reference.md", "files.md"
"""Pages that are generated."""
LINK = re.compile(r"\]\(([^)#\s]+)")


def read(path: str) -> str:
    """The text of a file, by its path in the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def documents() -> list[str]:
    """The pages that are written by hand."""
    return [*ROOT_PAGES, *guides()]


def guides() -> list[str]:
    """The pages in docs/, in the order of docs/contents.md, which comes first; those that it does not list come last, by name."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    listed = [CONTENTS, *(page for pages in groups().values() for page in pages)]
    return sorted(found, key=lambda path: listed.index(path) if path in listed else len(listed))


def groups() -> dict[str, list[str]]:
    """The pages that docs/contents.md lists, by its headings: the navigation of the site."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", read(CONTENTS), flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        links = re.findall(r"^- \[[^]]+\]\(([^)#\s]+)\)", body, re.MULTILINE)
        found[name.strip()] = [resolve(CONTENTS, link) or link for link in links]
    return found


def navigation() -> list[dict[str, str | list[str]]]:
    """What mkdocs calls nav: the first page, the groups with the generated pages in Reference, and pages that no group lists."""
    grouped = groups()
    grouped["Start"] = [CONTENTS, *grouped["Start"]]
    grouped["Reference"] = [COMMANDS, REFERENCE, *grouped["Reference"]]
    listed = {page for pages in grouped.values() for page in pages}
    more = [page for page in guides() if page not in listed]
    found: list[dict[str, str | list[str]]] = [{"Home": HOME}]
    found.extend({name: pages} for name, pages in grouped.items())
    return [*found, {"More": list(more)}] if more else found


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
