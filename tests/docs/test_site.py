"""The site: `make docs` gives pages that load nothing from a network, whose links all lead somewhere, and whose equations and code lead to
one another.

It is built once, by the command of the Makefile, from a copy of the repository into which faults have been planted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from filelock import FileLock

import formers

pytest.importorskip("material", reason="the site needs the extra docs: `make setup` installs it")
pytest.importorskip("latex2mathml", reason="the site needs the extra docs: `make setup` installs it")

from docsite import equations, formulas, links, markup, reference, repository
from helpers import sweep

ROOT = Path(__file__).parents[2]
NAMES = re.findall(r"^### (E\d+)", (ROOT / "EQUATIONS.md").read_text(encoding="utf-8"), re.MULTILINE)
COPIED = (*repository.ROOT_PAGES, "LICENSE", "CITATION.cff", "pyproject.toml", "mkdocs.yml", "docs", "src", "tests", "tools")
HOSTILE = "<script>alert('planted')</script>"
PLANTED = {
    "src/formers/planted.py": f'"""A file of {HOSTILE} words."""\n\nx = "{HOSTILE}"  # {HOSTILE}\n',
    "docs/planted.md": """# A planted page

[lost](no-such.md), [lost](../src/formers/no_such.py), [no line](../src/formers/planted.py#L99) and E999.
[an equation](../EQUATIONS.md#e17-class-logits), [a line](../src/formers/planted.py#L3), [a folder](../src/formers/attention).
Also E17 and `E17`.
""",
}
WARNED = ("no-such.md", "src/formers/no_such.py", "#L99", "E999")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site and what was said while it was built. Workers that test side by side share one."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            build(folder)
    return folder / "site", (folder / "said.txt").read_text(encoding="utf-8")


def build(folder: Path) -> None:
    """Copies the repository, plants the faults and builds the site."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    for name, text in PLANTED.items():
        (folder / name).write_text(text, encoding="utf-8")
    replace(folder / "src/formers/family/members.py", "The names of all members.", f"The names of all members. {HOSTILE}")
    replace(folder / "src/formers/cli/members.py", "List the members", f"List {HOSTILE} the members")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # with --quiet mkdocs would count no warning
    assert "mkdocs build --strict\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 1, "the planted faults were not found"
    assert "Traceback" not in done.stderr, done.stderr
    (folder / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def site(built: tuple[Path, str]) -> Path:
    return built[0]


@cache
def page(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(unescape(found) for found in re.findall(r'\sid="([^"]+)"', page(path)))


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def section(site: Path, name: str) -> str:
    """What stands below the heading of an equation."""
    text = page(site / "EQUATIONS.html")
    start = text.index(f'id="{name}"')
    end = re.compile(r"<h[23] ").search(text, start)
    return text[start : end.start() if end else len(text)]


def test_a_strict_build_warns_of_the_planted_faults_and_of_nothing_else(built: tuple[Path, str]) -> None:
    warnings = [line for line in built[1].splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(WARNED), warnings
    for fault in WARNED:
        assert any("docs/planted.md" in line and fault in line for line in warnings), (fault, warnings)


def test_a_page_loads_nothing_from_a_network(site: Path) -> None:
    for path in pages(site):
        tags = re.findall(r"<(?:link|script|img|iframe|source|object|embed)\b[^>]*>", page(path))
        assert tags
        assert [tag for tag in tags if re.search(r'(?:src|srcset|href|data)="?(?:https?:)?//', tag)] == [], path
    for path in site.rglob("*.css"):
        assert re.search(r"url\([\"']?(?:https?:)?//|@import", page(path)) is None, path


def test_every_relative_link_and_anchor_resolves(site: Path) -> None:
    lost = []
    for path in pages(site):
        for link in set(re.findall(r'<(?:a|link|script|img)\b[^>]*?\s(?:href|src)="([^"]*)"', page(path))):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = unescape(link).partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            if not target.is_file() or (anchor and target.suffix == ".html" and unquote(anchor) not in {*anchors(target), "__top"}):
                lost.append((path.relative_to(site).as_posix(), link))
    planted = [link for where, link in lost if where == "docs/planted.html"]
    assert len(planted) == 3, "a planted fault was not seen"
    assert [(where, link) for where, link in lost if where != "docs/planted.html"] == []


def test_the_navigation_has_every_page_in_its_group(site: Path) -> None:
    text = page(site / "index.html")
    nav = text[text.index("md-nav--primary") : text.index('class="md-content"')]
    found = list(dict.fromkeys(re.findall(r'<a href="([^"#]+)" class="md-nav__link[^"]*"', nav)))
    paths = [
        path for group in repository.navigation() for pages in group.values() for path in ([pages] if isinstance(pages, str) else pages)
    ]
    pages = ["index.html" if path == "README.md" else path.removesuffix(".md") + ".html" for path in paths]
    assert found == [*pages, "docs/planted.html"], "a page that no group lists comes last"
    assert set(repository.documents()) <= set(paths)
    names = [name for group in repository.navigation() for name in group]
    assert names[:9] == ["Home", "Start", "Members", "Parts", "Training", "Looking inside", "Experiments", "Reference", "Decisions"]
    assert "More" in nav


def test_every_page_of_the_contents_exists_and_is_listed_once() -> None:
    listed = [path for pages in repository.groups().values() for path in pages]
    assert [path for path in listed if not (ROOT / path).is_file()] == []
    assert len(listed) == len(set(listed))


def test_every_picture_can_be_enlarged(site: Path) -> None:
    count = 0
    for path in pages(site):
        article = page(path).partition("<article")[2].partition("</article>")[0]
        images = re.findall(r'<img\b[^>]*\bsrc="([^"]+)"', article)
        assert re.findall(r'<a class="enlarge(?: wide)?" href="([^"]+)"[^>]*><img\b', article) == images, path
        count += len(images)
        if images:
            assert "assets/enlarge.js" in page(path)
    assert count >= 30
    assert re.search(r"\.md-typeset img \{ max-width: 100%", page(site / "assets/site.css"))


SOUGHT = {
    "positional encoding": "docs/positional-encodings.html",
    "causal mask": "docs/patterns.html",
    "TransformerXL": "docs/transformer-xl.html",
    "memory": "docs/transformer-xl.html",
    "generation": "docs/generation.html",
    "attention maps": "docs/inspection.html",
    "KV cache": "docs/generation.html",
    "sliding window": "docs/patterns.html",
    "inputs_embeds": "docs/python.html",
}


@sweep(("words", "wanted"), SOUGHT.items())
def test_search_finds_the_words_of_the_literature(site: Path, words: str, wanted: str) -> None:
    """The page that explains them holds them, and so does the glossary or a title."""
    entries = json.loads(page(site / "search/search_index.js").removeprefix("var __index = ").rstrip(";\n"))["docs"]
    assert len(entries) > 300
    found = [entry for entry in entries if words.lower() in f"{entry['title']} {entry['text']}".lower()]
    assert any(entry["location"].partition("#")[0] == wanted for entry in found), sorted({e["location"] for e in found})
    known = {entry["location"].partition("#")[0] for entry in found}
    assert "docs/glossary.html" in known or any(words.lower() in entry["title"].lower() for entry in found)


@sweep("name", NAMES)
def test_an_equation_has_its_formula_and_its_code_and_the_code_leads_back(site: Path, name: str) -> None:
    text = section(site, name)
    assert "<math" in text
    places = re.findall(r'Computed at <a href="([^"#]+)#L(\d+)">', text)
    assert places, "no line of code is shown"
    for address, line in places:
        code = (ROOT / address.removesuffix(".html")).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert re.search(rf"#.*\b{name}\b", code)
        shown = unescape(re.sub(r"<[^>]+>", "", text))
        assert code.strip() in shown
        copied = re.search(rf'<span class="line" id="L{line}">(.*?)\n</span>', page(site / address))
        assert copied is not None
        assert unescape(re.sub(r"<[^>]+>", "", copied[1])) == code
        assert f'href="{"../" * address.count("/")}EQUATIONS.html#{name}">{name}</a>' in copied[1]


def test_every_formula_is_drawn(site: Path) -> None:
    for document in repository.documents():
        path = site / ("index.html" if document == "README.md" else document.replace(".md", ".html"))
        words = re.sub(r"<(code|pre|script|style)\b.*?</\1>", "", page(path), flags=re.DOTALL)
        assert "$$" not in words, path
        assert "arithmatex" not in words, path
        assert "\\(" not in words, path


def test_a_mention_of_an_equation_is_a_link_but_not_in_code(site: Path) -> None:
    planted = page(site / "docs/planted.html")
    assert "E17</a> and <code>E17</code>" in planted
    assert '<a href="../EQUATIONS.html#E17">an equation</a>' in planted
    assert '<a href="../files.html#src/formers/attention">a folder</a>' in planted
    article = page(site / "docs/transformer.html")
    assert '<mtext><span>(<a class="equation" href="../EQUATIONS.html#E3">E3</a>)</span></mtext>' in article


def test_code_help_and_docstrings_are_escaped(site: Path) -> None:
    seen = {path.relative_to(site).as_posix() for path in pages(site) if "planted&#39;)" in page(path) or "alert('planted')" in page(path)}
    assert {
        "src/formers/planted.py.html",
        "src/formers/family/members.py.html",
        "command-line.html",
        "reference.html",
        "files.html",
    } <= seen
    for path in pages(site):
        assert "<script>alert" not in page(path), path


def test_the_reference_has_every_public_name_member_and_part(site: Path) -> None:
    from formers.core import Slot
    from formers.family.members import MEMBERS

    text, known = page(site / "reference.html"), anchors(site / "reference.html")
    for name, home in formers._HOMES.items():
        assert (f"formers.{name}" if home else f"slot-{name}") in known
    assert {f"member-{name}" for name in MEMBERS} <= known
    for slot in Slot.__subclasses__():
        for part in slot.values():
            if part.__module__.startswith("formers.") and part.__module__.split(".")[1] in formers._HOMES:
                assert f"<code>{part.__name__}</code></a>" in text, part
    for name in formers.layers.__all__:
        assert f"formers.layers.{name}" in known
    assert "<code>window: PositiveInt</code>" in text
    assert "<code>causal: bool = True</code>" in text


def test_the_command_line_has_every_verb_and_option(site: Path) -> None:
    from typer.main import get_command

    from docsite.commands import anchor, verbs
    from formers.cli.app import app

    text, known = page(site / "command-line.html"), anchors(site / "command-line.html")
    found = dict(verbs(get_command(app), "formers"))
    assert {"formers train", "formers show pattern", "formers bench train"} <= set(found)
    for path, verb in found.items():
        assert anchor(path) in known
        start = text.index(f'id="{anchor(path)}"')
        here = text[start : text.find("<h2", start + 1)]
        for parameter in verb.params:
            assert re.search(rf"<code>{re.escape(parameter.opts[0])}\b", here, re.IGNORECASE), (path, parameter.opts)


def test_search_knows_the_pages_and_runs_without_a_server(site: Path) -> None:
    index = page(site / "search/search_index.js")
    assert index.startswith("var __index = ")
    assert '"EQUATIONS.html#E17"' in index
    assert "src/formers/planted.py.html" not in index, "copies of the source would be found before the pages"
    assert "assets/iframe-worker.js" in page(site / "index.html")


def test_the_statement_of_an_equation_is_shown_whole() -> None:
    text = "class A:\n    def f(self):\n        if self:\n            return g(\n                1,\n            )  # E1, E2\n"
    found = equations.places_in("a.py", text)
    assert [name for name, _ in found] == ["E1", "E2"]
    place = found[0][1]
    assert (place.line, place.first, place.function, place.code) == (6, 4, "A.f", "return g(\n    1,\n)  # E1, E2")
    block = equations.places_in("a.py", "for i in x:  # E4\n    y = i\n")
    assert [(name, place.code) for name, place in block] == [("E4", "for i in x:  # E4")]


def test_formulas_are_set_as_tex_sets_them() -> None:
    assert formulas.mathml(r"\mathrm{head}_m", "inline").count("<mi>head</mi>") == 1
    assert '<mi>W</mi><mspace width="0.17em"></mspace><mrow><mi>pool</mi></mrow><mo' in formulas.mathml(r"W\mathrm{pool}(h)", "inline")
    assert "<msub><mi>log</mi><mn>2</mn></msub>" in formulas.mathml(r"\log_2 x", "inline"), "a space inside would be a third child"
    assert "&lt;" in formulas.mathml("a < b", "inline")
    assert formulas.columns(r"a \qquad \frac{b \qquad c}{d} \qquad \text{e}") == ["a", r"\frac{b \qquad c}{d}", r"\text{e}"]
    for wrong in (r"\nosuchcommand x", "a & b"):
        with pytest.raises(ValueError, match="does not know"):
            formulas.mathml(wrong, "inline")


def test_words_are_replaced_outside_tags_links_and_code_only() -> None:
    html = '<p title="E1">E1 <a href="x">E1</a> <code>E1</code></p><h2>E1</h2><pre>E1</pre> E1'
    assert markup.in_text(html, equations.MENTION, str.lower) == html.replace(">E1 <a", ">e1 <a").replace("</pre> E1", "</pre> e1")


def test_links_are_led_to_what_stands_for_their_files() -> None:
    assert (
        links.in_site("docs/a.md", "../src/formers/attention/executors/dense.py#L3") == "../src/formers/attention/executors/dense.py.md#L3"
    )
    assert links.in_site("README.md", "docs/transformer.md#presets") == "docs/transformer.md#presets"
    assert links.in_site("docs/a.md", "../src/formers") == "../files.md#src/formers"
    assert links.in_site("docs/a.md", "pictures/causal.png") == "pictures/causal.png"
    assert links.in_site("README.md", "#further") == "#further"
    assert links.in_site("README.md", "https://example.org/a.py") == "https://example.org/a.py"


def test_signatures_are_those_of_the_code() -> None:
    def f(a: int, *rest: str, b: float = 0.5, **more: int) -> bool: ...

    def g(a, *, b="<i>"): ...

    assert reference.signature("f", f) == "f(a: int, *rest: str, b: float = 0.5, **more: int) -> bool"
    assert reference.signature("g", g) == "g(a, *, b='<i>')"
    assert "&lt;i&gt;" in markup.python(reference.signature("g", g))
