"""The report in a real browser: it fits a phone and a screen, light and dark, runs no text, and sends no request."""

from __future__ import annotations

import json

import pytest

import formers
from formers.report import read_reports, report_page

pytestmark = pytest.mark.slow
HOSTILE = "</table><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "my.txt").write_text("to be, or not to be, that is the question\n" * 200)
    small = dict(dim=16, heads=2, layers=1, length=16, batch=2, sample_tokens=12, eval_batches=1, final_batches=1)
    formers.train("decoder", folder / "my.txt", folder / "run", steps=20, quiet=True, track="none", **small)
    with (folder / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "prompt": HOSTILE, "sample": HOSTILE}) + "\n")
    file = folder / "report.html"
    file.write_text(report_page(*read_reports([folder / "run"]), title=HOSTILE), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_asks_for_nothing(browser, report, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    assert complaints == [], "the policy would complain of a style or script that it forbids"
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 23, 31)")
    assert page.locator("svg.chart").count() >= 6
    assert all(box["width"] > 100 for box in page.locator("svg.chart").evaluate_all("all => all.map(e => e.getBoundingClientRect())"))
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator(".maps img").first.evaluate("image => image.naturalWidth") > 1
    page.close()


def test_it_prints_in_black_on_white(browser, report):
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    page.emulate_media(media="print", color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()
