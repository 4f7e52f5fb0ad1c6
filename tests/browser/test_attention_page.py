"""The page of attention in a real browser: tokens are shaded as the weights say, no text ever runs, and no request is sent.

conftest.py says where the browser comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from formers.data import Bytes
from formers.inspect import View, save_attention_page, token_labels

WORDS = ["⟨begin⟩", "the", "␣cat", "␣sat", "␣on", "␣the", "␣mat", "⏎", "."]
HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"></script>&lt;\''


class Opened(NamedTuple):
    """A page in the browser, and what it did that it should not."""

    page: Any
    requests: list[str]
    complaints: list[str]

    def hover(self, label: str, side: str = "queries") -> None:
        self.page.locator(f'.tokens[data-side="{side}"] .token', has_text=label).first.hover()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def says(self) -> str:
        return self.page.locator("#says").inner_text()

    def shades(self, side: str = "queries") -> Tensor:
        """How opaque the ink behind each token of a side is."""
        return torch.tensor(
            self.page.evaluate(
                """side => [...document.querySelectorAll(`.tokens[data-side="${side}"] .token`)].map(token => {
                    token.style.transition = "none";
                    const [, alpha] = getComputedStyle(token).backgroundColor.match(/([\\d.]+)\\)$/);
                    return getComputedStyle(token).backgroundColor.startsWith("rgba") ? Number(alpha) : 1;
                })""",
                side,
            )
        )

    def listed(self) -> dict[int, float]:
        """The strongest shares that are shown in numbers, by place."""
        script = "[...document.querySelectorAll('#list li')].map(li => [li.querySelector('small').textContent, li.lastChild.textContent])"
        items = self.page.evaluate(script)
        return {int(place.strip(" []")): share_of(text) for place, text in items}

    def picture(self, selector: str = "#map") -> str:
        return self.page.evaluate("s => document.querySelector(s).toDataURL()", selector)


def share_of(text: str) -> float:
    return 0.0 if text.startswith("<") else float(text.removesuffix(" %")) / 100


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_page(views: list[View], width: int = 1100, dark: bool = False, **start: Any) -> Opened:
        path = save_attention_page(views, tmp_path / "attention.html", "a <b>model</b>", **start)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
        contexts.append((context, Opened(context.new_page(), [], []), path))
        found = contexts[-1][1]
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.goto(path.as_uri())
        return found

    yield open_page
    for context, found, path in contexts:
        assert found.requests == [path.as_uri()]
        assert found.complaints == []
        context.close()


def causal(layers: int, heads: int, length: int) -> Tensor:
    scores = 2 * torch.randn(layers, heads, length, length)
    return scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf")).softmax(dim=-1)


def words() -> View:
    return View("self-attention", WORDS, WORDS, causal(3, 4, len(WORDS)))


def assert_shown(page: Opened, shares: Tensor, side: str = "queries") -> None:
    """The shades of a side are the square roots of the shares, and the strongest are listed, strongest first, to a tenth of a percent."""
    torch.testing.assert_close(page.shades(side), shares.sqrt(), atol=0.01, rtol=0)
    listed = page.listed()
    assert list(listed.values()) == sorted(listed.values(), reverse=True)
    assert len(listed) == min(6, int((shares > 0).sum()))
    for place, share in listed.items():
        assert abs(share - shares[place].item()) <= 0.0005 + 1 / 65535
    others = shares[[place for place in range(len(shares)) if place not in listed]].tolist()
    assert all(other <= min(listed.values()) + 0.001 for other in others)


def test_a_token_shades_what_it_attends_to(opened: Open) -> None:
    view = words()
    page = opened([view])
    assert page.page.title() == "Attention of a <b>model</b>"
    assert page.page.locator("h1").inner_text() == "Attention of a <b>model</b>"
    page.hover("␣mat")
    assert page.says() == "␣mat [6] attends to"
    assert_shown(page, view.chosen(0)[6])
    assert page.shades()[7:].tolist() == [0, 0]  # what comes later is exactly nothing
    script = "[...document.querySelectorAll('.token')].map(t => [t.dataset.percent, getComputedStyle(t, '::after').height])"
    shown = [(place, float(share), height) for place, (share, height) in enumerate(page.page.evaluate(script)) if share]
    assert {place for place, _, _ in shown} <= {*page.listed()}
    assert len(shown) >= 3
    assert all(abs(share / 100 - view.chosen(0)[6, place].item()) < 0.001 for place, share, _ in shown)
    assert {height for _, _, height in shown} == {shown[0][2]}  # one line, even under a narrow token
    page.page.locator(".token", has_text="␣cat").focus()
    page.press("Tab")
    assert page.says().startswith("␣sat [3]")
    assert_shown(page, view.chosen(0)[3])


def test_heads_and_layers_are_chosen_by_menu_keys_and_pictures(opened: Open) -> None:
    view = words()
    page = opened([view])
    page.hover("␣on")
    pictures = [page.picture()]
    page.press("ArrowRight")
    assert_shown(page, view.weights[0, 0, 4])
    pictures.append(page.picture())
    page.press("ArrowDown", "ArrowRight", "ArrowRight")
    assert_shown(page, view.weights[1, 2, 4])
    pictures.append(page.picture())
    page.page.select_option("#layer", "2")
    page.page.select_option("#head", "3")
    assert_shown(page, view.weights[2, 3, 4])
    pictures.append(page.picture())
    page.page.get_by_role("button", name="layer 0, head 1").click()
    assert_shown(page, view.weights[0, 1, 4])
    pictures.append(page.picture())
    assert len(set(pictures)) == len(pictures)
    page.press(*["ArrowUp"] * 5, *["ArrowLeft"] * 9)
    assert page.page.locator("#matrix-title").inner_text() == "self-attention, layer 0, mean of heads"
    assert_shown(page, view.chosen(0)[4])
    assert page.picture() == pictures[0]
    thumbs = page.page.evaluate("[...document.querySelectorAll('#grid canvas')].map(c => c.toDataURL())")
    assert len(thumbs) == len(set(thumbs)) == 3 * (4 + 1)
    assert page.page.locator('#grid [aria-pressed="true"]').count() == 1


def test_the_direction_turns_rows_into_columns(opened: Open) -> None:
    view = words()
    page = opened([view], layer=1, head=2)
    page.hover("␣cat")
    assert_shown(page, view.weights[1, 2, 2])
    page.page.get_by_label("is attended by").check()
    assert page.says() == "␣cat [2] is attended by"
    assert_shown(page, view.weights[1, 2, :, 2])
    page.hover("⟨begin⟩")
    assert_shown(page, view.weights[1, 2, :, 0])


def test_a_click_pins_a_token_and_escape_lets_go(opened: Open) -> None:
    page = opened([words()])
    page.page.locator(".token", has_text="␣sat").click()
    page.hover("␣cat")
    assert page.says().startswith("␣sat")
    assert page.page.locator('.token[aria-pressed="true"]').inner_text() == "␣sat"
    page.press("Escape")
    page.hover("␣mat")
    assert page.says().startswith("␣mat")


def test_the_map_tells_its_pairs(opened: Open) -> None:
    view = words()
    page = opened([view], layer=2, head=1)
    box = page.page.locator("#map").bounding_box()
    found = set()
    for row in range(len(WORDS)):
        for step in range(1, 30, 4):
            page.page.mouse.move(box["x"] + box["width"] * step / 30, box["y"] + box["height"] * (1 - (len(WORDS) - row - 0.5) * 0.085))
            tip = page.page.locator("#tip")
            if tip.is_visible():
                pair, share = tip.inner_text().rsplit(": ", 1)
                query, key = (int(side.rsplit("[", 1)[1].rstrip("]")) for side in pair.split(" → "))
                assert pair == f"{WORDS[query]} [{query}] → {WORDS[key]} [{key}]"
                assert abs(share_of(share) - view.weights[2, 1, query, key].item()) <= 0.0005 + 1 / 65535
                found.add((query, key))
    assert len(found) > 20


def test_two_sides_are_two_panels(opened: Open) -> None:
    source, target = ["a", "␣man", "␣reads"], ["⟨begin⟩", "ein", "␣Mann", "␣liest"]
    cross = View("cross-attention", target, source, torch.randn(2, 2, 4, 3).softmax(dim=-1))
    encoder = View("encoder self-attention", source, source, torch.randn(2, 2, 3, 3).softmax(dim=-1))
    page = opened([encoder, cross], first=1, layer=1, head=1)
    page.hover("␣Mann")
    assert_shown(page, cross.weights[1, 1, 2], "keys")
    page.hover("␣man", "keys")
    assert page.says() == "␣man [1] is attended by"
    assert_shown(page, cross.weights[1, 1, :, 1])
    before = page.picture()
    page.page.get_by_label("encoder self-attention", exact=True).check()
    page.hover("␣reads")
    assert_shown(page, encoder.weights[1, 1, 2])
    assert page.picture() != before


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (390, True)])
def test_a_hostile_text_is_shown_and_never_run(opened: Open, width: int, dark: bool) -> None:
    whole = [HOSTILE, "␣", "__proto__", "\\u2028"]
    view = View("self-attention", whole, whole, causal(1, 2, 4))
    letters = token_labels(Bytes(), HOSTILE.encode())
    page = opened([view, View("encoder self-attention", letters, letters, causal(1, 1, len(letters)))], width, dark)
    for option in ("self-attention", "encoder self-attention"):
        page.page.get_by_label(option, exact=True).check()
        page.page.locator(".token").first.hover()
        page.page.locator("#map").hover()
        assert page.page.evaluate("window.hacked") is None
        assert page.page.locator("main img, main script").count() == 0
    page.page.get_by_label("self-attention", exact=True).check()
    assert page.page.locator(".token").first.text_content() == HOSTILE
    assert page.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_nothing_from_outside_may_be_loaded_or_run(opened: Open) -> None:
    page = opened([words()])
    blocked = page.page.evaluate(
        """async () => {
            const seen = [];
            document.addEventListener("securitypolicyviolation", event => seen.push(event.effectiveDirective));
            await fetch("https://example.org/").catch(() => 0);
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            document.body.append(Object.assign(new Image(), { src: "https://example.org/x.png" }));
            await new Promise(done => setTimeout(done, 100));
            return seen;
        }"""
    )
    assert {"connect-src", "img-src"} < set(blocked)
    assert page.page.evaluate("window.hacked") is None
    # the browser tells of what it has blocked
    assert [url for url in page.requests if not url.startswith("file:")] in ([], ["https://example.org/x.png"])
    page.complaints.clear()
    del page.requests[1:]


def test_one_token_a_query_without_keys_and_many_tokens(opened: Open) -> None:
    one = opened([View("self-attention", ["a"], ["a"], torch.ones(1, 1, 1, 1))])
    one.page.locator(".token").hover()
    assert one.listed() == {0: 1.0}

    empty = words().weights.clone()
    empty[:, :, 2] = 0
    none = opened([View("self-attention", WORDS, WORDS, empty)])
    none.hover("␣cat")
    assert none.says() == "␣cat [2] attends to nothing"
    assert none.listed() == {}
    assert not none.shades().any()
    assert "NaN" not in none.page.locator("body").inner_text()

    labels = token_labels(Bytes(), b"it was a bright cold day " * 20)
    view = View("self-attention", labels, labels, causal(2, 4, 500))
    many = opened([view], 390)
    many.page.locator(".token").nth(499).hover()
    listed = many.listed()
    assert {*view.chosen(0)[499].topk(3).indices.tolist()} <= {*listed}
    for place, share in listed.items():
        assert abs(share - view.chosen(0)[499, place].item()) <= 0.005 + 0.5 / 255
    assert many.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert many.page.locator("#map").bounding_box()["width"] <= 390


def test_dark_is_dark(opened: Open) -> None:
    view = words()
    pages = opened([view]), opened([view], dark=True)
    grounds = [page.page.evaluate("getComputedStyle(document.body).backgroundColor") for page in pages]
    light, dark = (sum(int(part) for part in ground.strip("rgb()").split(",")) for ground in grounds)
    assert light > 3 * 200 > 3 * 60 > dark
