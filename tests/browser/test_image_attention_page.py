"""The page of attention over an image in a real browser: pixels are shaded as the weights say, and no request is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import formers
from formers.inspect.draw.image_attention import over_image
from formers.inspect.draw.image_attention_page import save_image_attention_page
from formers.inspect.measure.image_attention import PixelAttention, pixel_attention

HEIGHT, WIDTH = 5, 6
TINY: dict[str, Any] = dict(height=HEIGHT, width=WIDTH, dim=16, heads=2, layers=2, levels=17)
GRID: dict[str, Any] = dict(layout="2d", query_block=[2, 3], memory_block=[1, 2])
HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
CENTRES = """() => {
    const small = Object.assign(document.createElement("canvas"), { width: 6, height: 5 }), shown = document.getElementById("picture");
    const context = small.getContext("2d", { willReadFrequently: true }), found = [];
    context.imageSmoothingEnabled = false;  // the colour at the centre of each pixel
    context.drawImage(shown, 0, 0, 6, 5);
    const { data } = context.getImageData(0, 0, 6, 5);
    for (let i = 0; i < 30; i++) found.push([...data.slice(4 * i, 4 * i + 3)]);
    return found;
}"""


class Opened(NamedTuple):
    """A page in the browser, and what it did that it should not."""

    page: Any
    requests: list[str]
    complaints: list[str]

    def point(self, row: int, column: int, click: bool = False) -> None:
        self.page.locator("#picture").scroll_into_view_if_needed()
        box = self.page.locator("#picture").bounding_box()
        at = box["x"] + box["width"] * (column + 0.5) / WIDTH, box["y"] + box["height"] * (row + 0.5) / HEIGHT
        (self.page.mouse.click if click else self.page.mouse.move)(*at)

    def says(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()

    def colours(self) -> Any:
        """The colours (height, width, 3) at the centres of the pixels."""
        return np.array(self.page.evaluate(CENTRES)).reshape(HEIGHT, WIDTH, 3)

    def listed(self) -> list[tuple[str, float]]:
        """The names and shares of the list."""
        script = "[...document.querySelectorAll('#list li')].map(li => [li.firstChild.firstChild.textContent, li.lastChild.textContent])"
        return [(name, 0.0 if text.startswith("<") else float(text.removesuffix(" %")) / 100) for name, text in self.page.evaluate(script)]


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_page(view: PixelAttention, width: int = 1280, dark: bool = False, name: str = "m", **start: Any) -> Opened:
        path = save_image_attention_page(view, tmp_path / "attention.html", name, **start)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
        found = Opened(context.new_page(), [], [])
        contexts.append((context, found, path))
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


def seen(pixel: tuple[int, int] = (3, 4), every: bool = True, **options: Any) -> PixelAttention:
    torch.manual_seed(3)
    model = formers.create("image-transformer", **TINY, **options)
    return pixel_attention(model, torch.randint(17, (HEIGHT, WIDTH, options.get("channels", 1))), pixel, every=every)


def moved(view: PixelAttention, row: int, column: int) -> PixelAttention:
    return PixelAttention(**{**view.__dict__, "pixel": (row, column)})


def assert_shown(page: Opened, view: PixelAttention, layer: int, head: int | None) -> None:
    """The page shows a layer and head as Python draws it, and tells the strongest shares and that of the start."""
    weights, start = view.chosen(layer, head)
    assert page.says("picture-title") == f"Layer {layer}, {'mean of heads' if head is None else f'head {head}'}"
    assert page.says("says").startswith("The pixel at row {}, column {}".format(*view.pixel))
    assert np.abs(page.colours() - over_image(view, weights, float(weights.max())).astype(int)).max() <= 2
    *pixels, (last, share) = page.listed()
    assert last == "start"
    assert abs(share - start) <= 0.001
    assert len(pixels) == min(8, int((weights > 0).sum()))
    shares = [share for _, share in pixels]
    assert shares == sorted(shares, reverse=True)
    for name, share in pixels:
        row, column = (int(word.split()[1]) for word in name.split(", "))
        assert abs(share - float(weights[row, column])) <= 0.005


def test_pixels_are_shaded_as_python_draws_them(opened: Open) -> None:
    view = seen(**GRID)
    page = opened(view, layer=1, head=0)
    assert_shown(page, view, 1, 0)
    page.point(3, 2, click=True)
    assert_shown(page, moved(view, 3, 2), 1, 0)
    page.page.select_option("#layer", "0")
    page.page.select_option("#head", "-1")
    assert_shown(page, moved(view, 3, 2), 0, None)
    page.page.get_by_role("button", name="layer 1, head 1").click()
    assert_shown(page, moved(view, 3, 2), 1, 1)
    assert page.page.locator('#grid [aria-pressed="true"]').count() == 1
    page.page.get_by_label("image", exact=True).check()
    assert (np.ptp(page.colours(), axis=2) == 0).all()  # grey
    thumbs = page.page.evaluate("[...document.querySelectorAll('#grid canvas')].map(c => c.toDataURL())")
    assert len(thumbs) == len(set(thumbs)) == 2 * (2 + 1)


def test_keys_choose_layers_heads_and_pixels(opened: Open) -> None:
    view = seen(**GRID)
    page = opened(view)
    for keys, row, column, layer, head in (
        (["ArrowRight", "ArrowDown"], 3, 4, 1, 0),
        (["Shift+ArrowLeft", "Shift+ArrowUp"], 2, 3, 1, 0),
        (["Shift+ArrowDown"] * 9, 4, 3, 1, 0),
        (["Shift+ArrowRight"] * 9, 4, 5, 1, 0),
        (["ArrowLeft", "ArrowLeft", "ArrowUp"], 4, 5, 0, None),
    ):
        for key in keys:
            page.page.keyboard.press(key)
        assert_shown(page, moved(view, row, column), layer, head)


def test_the_tip_tells_the_share_that_is_shown(opened: Open) -> None:
    view = seen()
    page = opened(view, layer=0, head=0)
    page.point(2, 1)

    def assert_told(layer: int, head: int | None) -> None:
        name, share = page.says("tip").split(": ")
        assert name == f"row 2, column 1 [{int(view.image[2, 1, 0])}]"
        assert abs(float(share.removesuffix(" %")) / 100 - float(view.chosen(layer, head)[0][2, 1])) <= 0.005

    assert_told(0, 0)
    page.page.keyboard.press("ArrowDown")  # the pointer rests, and the layer changes under it
    assert_told(1, 0)
    page.point(4, 4)
    assert page.says("tip").endswith(": later")
    page.page.locator("h1").hover()
    assert page.page.locator("#tip").is_hidden()


def test_one_pixel_and_channels(opened: Open) -> None:
    view = seen(every=False, channels=3)
    page = opened(view)
    assert page.says("says") == "The pixel at row 3, column 4, channel 0 attends to"
    page.point(1, 1, click=True)
    page.page.keyboard.press("Shift+ArrowUp")
    assert_shown(page, view, 0, None)
    assert "one pixel" in page.says("footer")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
def test_it_fits_the_screen_and_runs_no_text(opened: Open, width: int, dark: bool) -> None:
    page = opened(seen(**GRID), width, dark, name=HOSTILE)
    assert page.says("model").strip() == f"of {HOSTILE}"
    page.point(0, WIDTH - 1)
    assert page.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    box = page.page.locator("#picture").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert abs(box["width"] / box["height"] - WIDTH / HEIGHT) < 0.02
    ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground.strip("rgb()").split(",")) < 180) == dark
    assert page.page.evaluate("window.hacked") is None
    assert page.page.locator("main img, main script").count() == 0
