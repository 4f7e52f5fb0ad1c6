"""The page of `formers serve` in a real browser: every view by mouse and by keyboard alone, no request elsewhere, no text that runs.

With FORMERS_AXE set to axe-core's axe.min.js, each view is also checked for accessibility, light and dark, wide and narrow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import uvicorn

import formers
import formers.rl
from formers.data import Bytes
from formers.serve.app import make_app, make_services
from formers.serve.server import bound
from serving import make_run, wait_until

pytestmark = pytest.mark.slow

HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
SIZES: dict[str, Any] = {"dim": 16, "heads": 2, "layers": 2, "hidden": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    formers.create("decoder", vocab=256, length=64, **SIZES).save_pretrained(root / "decoder")
    formers.create("adaptive-span", vocab=256, length=64, span=32, **SIZES).save_pretrained(root / "span")
    translator = formers.create("transformer", vocab=258, length=32, **SIZES)
    translator.tokenizer = Bytes(specials=("begin", "end"))
    translator.save_pretrained(root / "translator")
    classifier = formers.create("encoder", vocab=256, length=32, classes=2, **SIZES)
    classifier.labels = ("bad", HOSTILE)
    classifier.save_pretrained(root / "classifier")
    formers.create(
        "image-transformer", vocab=4, height=4, width=4, channels=1, layout="1d", query_block=4, memory_block=4, **SIZES
    ).save_pretrained(root / "images")
    formers.rl.train("gtrxl", "tmaze:2", root / "agent", steps=64, quiet=True, dim=16, heads=2, layers=1, eval_episodes=2)
    make_run(root / "first", steps=30)
    sampled = make_run(root / HOSTILE.replace("/", "_"), steps=30)
    with (sampled / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "prompt": "", "sample": f"{HOSTILE}\u001b[31m"}) + "\n")
        file.write('{"step": 31, "loss": null, "loss_word": "nan", "seconds": 4}\n{"step": 32, "loss": 0.1, "seconds": 5}\n')
    return root


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    services = make_services(folder)
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(services), log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_until(services.runs.ready.is_set)
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    services.closing.set()
    server.should_exit = True
    thread.join(30)


class Opened(NamedTuple):
    """A page in the browser, and what it did that it should not."""

    page: Any
    requests: list[str]
    complaints: list[str]

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def until(self, script: str, given: Any = None) -> None:
        """Waits until an expression holds; asked from outside, for the page's policy forbids it to evaluate text."""
        wait_until(lambda: bool(self.page.evaluate(f"given => {script}", given)), 30)

    def tab_to(self, label: str) -> None:
        """Presses Tab until a control of this name has the focus."""
        name = "const e=document.activeElement; return e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent"
        for _ in range(120):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(f"() => {{ {name} }}").strip() == label:
                return
        pytest.fail(f"Tab never reached {label!r}")


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Open]:
    contexts: list[tuple[Any, Opened]] = []

    def open_page(view: str = "", width: int = 1280, dark: bool = False) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", bypass_csp=False)
        found = Opened(context.new_page(), [], [])
        contexts.append((context, found))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.goto(address + view)
        return found

    yield open_page
    for context, found in contexts:
        assert [url for url in found.requests if not url.startswith(address)] == []
        assert found.complaints == []
        assert found.page.evaluate("window.hacked") is None
        context.close()


def test_runs_are_shown_and_compared_by_ticking(opened: Open) -> None:
    page = opened()
    page.until("document.querySelector('#watch').dataset.drawn === '3'")  # two runs and the agent's
    before = page.page.evaluate("document.querySelector('canvas.chart').toDataURL()")
    page.page.get_by_label("show the curve of first", exact=True).uncheck()
    page.until("document.querySelector('#watch').dataset.drawn === '2'")
    assert page.page.evaluate("document.querySelector('canvas.chart').toDataURL()") != before
    page.page.get_by_label("Curve", exact=True).select_option("norm")
    page.until("document.querySelector('#watch').dataset.drawn === '1'")
    page.page.get_by_label("Against").select_option("seconds")
    page.page.get_by_label("Find").fill("no such run")
    page.until("document.querySelector('#watch').textContent.includes('No run is called so.')")


def test_a_script_in_a_name_and_in_a_sample_stays_text(opened: Open) -> None:
    page = opened()
    page.page.get_by_role("button", name=re.compile("script")).click()
    page.page.wait_for_selector(".sample")
    assert HOSTILE in page.page.locator(".sample").inner_text()
    assert "\u001b" not in page.page.locator(".sample").inner_text()
    assert page.page.locator("main script, main img").count() == 0


def test_a_run_that_trains_is_followed_and_one_that_goes_away_is_dropped(opened: Open, folder: Path) -> None:
    make_run(folder / "live", steps=5)
    page = opened()
    page.until("document.querySelector('tr[data-id=live]') !== null")
    make_run(folder / "live", steps=1, start=777)
    began = time.monotonic()
    page.until("document.querySelector('tr[data-id=live]').textContent.includes('777')")
    assert time.monotonic() - began < 5.0
    shutil.rmtree(folder / "live")
    page.until("document.querySelector('tr[data-id=live]') === null")


def test_text_is_written_with_its_chances_side_by_side(opened: Open) -> None:
    page = opened("#/try")
    prompt = page.page.locator("#try").get_by_label("Prompt")
    prompt.fill(HOSTILE)
    page.page.get_by_label("span", exact=True).check()
    page.page.get_by_label("decoder", exact=True).check()
    page.page.get_by_label("Tokens").fill("12")
    page.page.get_by_role("button", name="Write").click()
    page.until("[...document.querySelectorAll('.answer')].length === 2")
    page.until("[...document.querySelectorAll('.answer')].every(e => e.textContent.includes('ended by length'))")
    answer = page.page.locator(".answer").first
    assert answer.locator(".token").count() == 12
    assert answer.locator(".given").inner_text() == HOSTILE
    answer.locator(".token").nth(3).hover()
    assert "likeliest" in answer.locator(".chances").inner_text()
    page.page.get_by_label("Tokens").fill("9000")
    page.page.get_by_role("button", name="Write").click()
    page.until("document.querySelectorAll('.answer .token').length > 20")
    page.page.get_by_role("button", name="Stop").click()
    page.until("document.querySelector('.answer').textContent.includes('stopped')")
    page.page.get_by_label("Tokens").fill("5")
    page.page.get_by_label("Beams").fill("2")
    page.page.get_by_label("Temperature").fill("0")
    page.page.get_by_role("button", name="Write").click()
    page.until("document.querySelector('.answer').textContent.includes('5 tokens in')")


def test_translations_classes_images_and_episodes(opened: Open) -> None:
    page = opened("#/try")
    place = page.page.locator("#try")
    place.get_by_label("Translate", exact=True).check()
    place.get_by_label("Source").fill("forty two")
    place.get_by_label("Tokens").fill("8")
    place.get_by_role("button", name="Translate").click()
    page.until("/\\d+ tokens/.test(document.querySelector('.answer')?.textContent)")
    place.get_by_label("Classify", exact=True).check()
    place.get_by_label("Text").fill("a film")
    place.get_by_role("button", name="Classify").click()
    page.until("document.querySelectorAll('.answer .value').length === 2")
    assert HOSTILE in place.locator(".answer").inner_text()
    place.get_by_label("Images", exact=True).first.check()
    place.get_by_role("button", name="Draw", exact=True).click()
    page.until("document.querySelectorAll('.answer canvas').length === 4")
    place.get_by_label("Episode", exact=True).first.check()
    place.get_by_role("button", name="Play", exact=True).click()
    page.until("document.querySelector('.answer .says')?.textContent.startsWith('step 0')")


def test_attention_is_looked_at(opened: Open) -> None:
    page = opened("#/look")
    place = page.page.locator("#look")
    place.get_by_label("Run", exact=True).select_option("span")
    text = "the cat <img src=x onerror=window.hacked=1>"
    place.get_by_label("Text").fill(text)
    place.get_by_role("button", name="Look", exact=True).click()
    page.until("document.querySelector('canvas.map')?.width > 10")
    assert place.locator(".tokens button").count() == len(text)
    assert place.locator("img").count() == 0
    first = page.page.evaluate("document.querySelector('canvas.map').toDataURL()")
    place.locator(".tokens button").nth(4).click()
    page.until("document.querySelector('#look .says').textContent.includes('[4] attends to')")
    place.get_by_label("Layer").select_option("1")
    place.get_by_label("Head").select_option("1")
    page.until("document.querySelector('canvas.map').toDataURL() !== given", first)
    assert "Spans" in place.inner_text()


def test_a_pattern_changes_with_its_sliders_and_the_link_holds_it(opened: Open, address: str) -> None:
    page = opened("#/patterns")
    place = page.page.locator("#patterns")
    page.until("document.querySelector('#patterns canvas') !== null")
    place.get_by_label("Pattern").select_option("local")
    place.get_by_label("window, as a number").fill("3")
    page.until("decodeURIComponent(location.hash).includes('\"window\":3')")
    page.until("document.querySelector('#patterns [role=status]').textContent.includes('64 places')")
    told = place.locator("[role=status]").inner_text()
    again = opened(page.page.evaluate("location.hash"))
    again.until("document.querySelector('#patterns canvas') !== null")
    assert again.page.locator("#patterns").get_by_label("window, as a number").input_value() == "3"
    again.until("document.querySelector('#patterns [role=status]').innerText === given", told)


def test_everything_works_by_keyboard_alone(opened: Open) -> None:
    page = opened()
    page.until("document.querySelector('#watch').dataset.drawn === '3'")
    page.tab_to("show the curve of first")
    page.press("Space")
    page.until("document.querySelector('#watch').dataset.drawn === '2'")
    page.tab_to("Curves of the ticked runs; arrow keys move a cursor over them")
    page.press("ArrowRight", "ArrowRight")
    assert page.page.locator(".chart-box .says").inner_text().startswith("steps")
    page.page.evaluate("document.activeElement.blur()")
    page.page.goto(page.page.url.split("#")[0] + "#/try")
    page.page.wait_for_selector("#try form")
    page.tab_to("Prompt")
    page.page.keyboard.type("To be")
    page.tab_to("Tokens")
    page.press("Control+a")
    page.page.keyboard.type("6")
    page.press("Enter")
    page.until("document.querySelector('.answer')?.textContent.includes('ended by length')")
    page.tab_to("what was written; arrow keys go from token to token")
    page.press("ArrowRight")
    assert page.page.locator(".token.active").count() == 1
    page.page.goto(page.page.url.split("#")[0] + "#/look")
    page.page.wait_for_selector("#look form")
    page.tab_to("Text")
    page.page.keyboard.type(" and more")
    page.tab_to("Look")
    page.press("Enter")
    page.until("document.querySelector('canvas.map')?.width > 3")
    page.tab_to("attention map: queries down, keys across; arrow keys move, plus and minus zoom")
    page.press("ArrowDown", "ArrowRight")
    assert "→" in page.page.locator("#look .says").inner_text()
    page.press("+")
    page.until("document.querySelector('canvas.map').width === 8")
    page.press("Escape")
    page.until("document.querySelector('canvas.map').width > 8")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_fits_and_is_accessible(opened: Open, width: int, dark: bool) -> None:
    script = os.environ.get("FORMERS_AXE")
    for view in ("#/watch", "#/try", "#/look", "#/patterns"):
        page = opened(view, width, dark)
        name = view[2:]
        page.page.wait_for_selector({"watch": "#watch tr[data-id]", "patterns": "#patterns canvas"}.get(name, f"#{name} form"))
        if name == "watch":
            page.page.get_by_role("button", name="first").click()
            page.page.wait_for_selector(".details dl")
        if name == "try":
            page.page.get_by_label("Tokens").fill("5")
            page.page.get_by_role("button", name="Write").click()
            page.until("document.querySelector('.answer')?.textContent.includes('ended by length')")
        if name == "look":
            page.page.locator("#look").get_by_label("Text").fill("some text")
            page.page.get_by_role("button", name="Look", exact=True).click()
            page.page.wait_for_selector("canvas.map")
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out to the side
        if script is not None:
            found = page.page.evaluate(f"{Path(script).read_text()}; axe.run().then(r => r.violations)")
            assert [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found] == []
