"""The site in a real browser, opened as a file: search finds the words of the literature, and a click enlarges a picture."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="the site needs the extra docs: `make setup` installs it")
pytest.importorskip("latex2mathml", reason="the site needs the extra docs: `make setup` installs it")

ROOT = Path(__file__).parents[2]
SOUGHT = {
    "positional encoding": "docs/positional-encodings.html",
    "causal mask": "docs/patterns.html",
    "TransformerXL": "docs/transformer-xl.html",
    "memory": "docs/transformer-xl.html",
    "generation": "docs/generation.html",
    "attention maps": "docs/inspection.html",
}
SHOWN = 8
"""The page that is sought is among so many pages, the first screen of results."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of the size of a laptop that notes the requests that leave the machine."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.outside = []
    opened.on("request", lambda request: opened.outside.append(request.url) if request.url.startswith("http") else None)
    yield opened
    opened.close()


def test_search_finds_the_page_of_each_word(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    for words, wanted in SOUGHT.items():
        page.fill(".md-search__input", "")
        page.type(".md-search__input", words)  # search answers to keys
        page.wait_for_selector(".md-search-result__link", timeout=60_000)  # the index is built when search is first used
        page.wait_for_timeout(1000)
        links = page.eval_on_selector_all(".md-search-result__item > .md-search-result__link", "links => links.map(link => link.href)")
        found = [link.removeprefix(f"{site.as_uri()}/").partition("?")[0].partition("#")[0] for link in links]
        found = list(dict.fromkeys(found))  # sections of a page stand beside each other
        assert wanted in found[:SHOWN], (words, found[:SHOWN])
    assert page.outside == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_enlarges_a_picture_to_its_own_size(site: Path, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto((site / "docs" / "reformer.html").as_uri())
    sizes = "image => [image.naturalWidth, image.getBoundingClientRect().width]"
    natural, small = page.eval_on_selector("article img", sizes)
    assert natural > 2000
    assert small >= min(700, natural), "the picture is too small to read"
    page.click("article a.enlarge")
    assert page.eval_on_selector("dialog.enlarged img", sizes) == [natural, natural]
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog.enlarged", state="detached")
    assert page.url.partition("#")[0].endswith("reformer.html")
    assert page.outside == []


@pytest.mark.parametrize("name", ["index", "docs/reformer", "docs/interaction", "docs/image-transformer", "docs/gtrxl", "docs/addition"])
def test_no_page_is_wider_than_the_screen_of_a_telephone(site: Path, page: Any, name: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
