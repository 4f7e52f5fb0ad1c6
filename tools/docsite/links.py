"""Links that lead to files of the repository are led to the pages that stand for them in the site."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

from docsite.copies import page_of, url_of
from docsite.equations import MENTION, numbers
from docsite.markup import in_text
from docsite.repository import EQUATIONS, FILES, ROOT, resolve

SECTION = re.compile(r"^e(\d+)-.*")
"""What GitHub calls the anchor of an equation's heading."""


class RepositoryLinks(Extension):
    """Changes links while a page is rendered, before mkdocs checks them. `page` is set to the path of the page first."""

    page = ""

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(_Links(self, md), "repository_links", 1)  # mkdocs' own has priority 0


class _Links(Treeprocessor):
    def __init__(self, owner: RepositoryLinks, md: Markdown) -> None:
        super().__init__(md)
        self.owner = owner

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            link.set("href", in_site(self.owner.page, link.get("href", "")))


def in_site(page: str, link: str) -> str:
    """A link of a page, as mkdocs wants it: a file's copy, the list of a folder's files, or what it was."""
    path, _, anchor = link.partition("#")
    target = resolve(page, path) if path else page
    if target is None:
        return link
    up = "../" * page.count("/")
    if (ROOT / target).is_dir():
        return f"{up}{FILES}#{target}"
    if target == EQUATIONS:
        anchor = SECTION.sub(r"E\1", anchor)
    elif (ROOT / target).is_file() and not target.endswith(".md") and not target.startswith("docs/"):
        path = page_of(path)
    return f"{path}#{anchor}" if anchor else path


def to_equations(html: str, page: str) -> tuple[str, list[str]]:
    """A page's HTML with a link at each mention of an equation, also in the words of a formula; and the numbers that there are not."""
    address, unknown = url_of(EQUATIONS, page), []

    def link(name: str) -> str:
        if name in numbers():
            return f'<a class="equation" href="{address}#{name}">{name}</a>'
        unknown.append(name)
        return name

    return in_text(html, MENTION, link), unknown
