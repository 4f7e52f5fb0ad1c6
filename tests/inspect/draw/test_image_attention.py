"""Attention over an image: weights are those of the model, at the pixels that keys stand for; pictures and pages show them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import formers
from formers.inspect.draw.image_attention import ORANGE, QUERY, dimmed, draw_pixel_attention, over_image, save_pixel_attention
from formers.inspect.draw.image_attention_page import image_attention_page, save_image_attention_page
from formers.inspect.measure.image_attention import PixelAttention, pixel_attention, pixel_attention_facts
from helpers import close, refused, sweep

SMALL: dict[str, Any] = dict(height=5, width=6, dim=16, heads=2, layers=2, levels=17)
GRID: dict[str, Any] = dict(layout="2d", query_block=[2, 3], memory_block=[1, 2])
KINDS: list[dict[str, Any]] = [
    {},
    dict(query_block=6, memory_block=7),
    GRID,
    dict(channels=3, **GRID),
    dict(channels=3, head="mixture", **GRID),
    dict(head="mixture"),
]


def example(**options: Any) -> tuple[formers.Model, torch.Tensor]:
    model = formers.create("image-transformer", **{**SMALL, **options})
    return model, torch.randint(17, (5, 6, options.get("channels", 1)))


@sweep("options", KINDS)
def test_weights_are_the_model_s(options: dict[str, Any]) -> None:
    model, image = example(**options)
    raster = model.spec.image
    assert raster is not None
    mixture = options.get("head") == "mixture"
    stream = raster.to_pixels(2 * image[None].float() / 16 - 1) if mixture else raster.to_stream(image[None])
    given = torch.cat([torch.zeros_like(stream[:, :1]), stream[:, :-1]], dim=1)
    maps = torch.stack([weights[0] for weights in model.inspect(given).attention])  # (layers, heads, cells, cells)
    for pixel in ((0, 0), (3, 4), (4, 5)):
        view = pixel_attention(model, image, pixel)
        (t,) = [t for t in range(raster.cells) if raster.cell(t)[:3] == (*pixel, 0)]
        wanted = torch.zeros(2, 2, 5, 6)
        for s in range(1, t + 1):
            row, column, _ = raster.cell(s - 1)
            wanted[:, :, row, column] += maps[:, :, t, s]
        close(view.weights[:, :, 0], wanted, 1e-6)
        close(view.start[:, :, 0], maps[:, :, t, 0], 1e-6)
        assert (view.weights[:, :, 0][:, :, ~torch.from_numpy(view.known)] == 0).all()


@sweep("options", KINDS)
def test_every_pixel_can_be_kept(options: dict[str, Any]) -> None:
    model, image = example(**options)
    every = pixel_attention(model, image, (2, 3), every=True)
    assert every.queries == tuple(range(30))
    close(every.weights.sum(dim=(3, 4)) + every.start, torch.ones(2, 2, 30), 1e-5)
    for pixel in ((2, 3), (0, 5), (4, 0)):
        one = pixel_attention(model, image, pixel)
        assert one.queries == (pixel[0] * 6 + pixel[1],)
        close(every.weights[:, :, one.queries[0]], one.weights[:, :, 0], 1e-6)
    close(every.chosen(1, 0)[0], pixel_attention(model, image, (2, 3)).chosen(1, 0)[0], 1e-6)


def test_later_channels_see_the_earlier_ones_of_their_pixel() -> None:
    model, image = example(channels=3)
    first, last = (pixel_attention(model, image, (2, 2), channel) for channel in (0, 2))
    assert float(first.weights[..., 2, 2].abs().max()) == 0.0
    assert float(last.weights[..., 2, 2].min()) > 0.0
    assert not first.whole


def test_a_class_is_given_to_the_model() -> None:
    model, image = example(condition="class", labels=3)
    seen = [pixel_attention(model, image, label=label).weights for label in (0, 2)]
    assert not torch.equal(*seen)
    tokens = torch.randint(17, (2, 30))
    label = torch.tensor([0, 2])
    close(model.inspect(tokens, label=label).output.hidden, model.eval()(tokens, label=label).hidden, 1e-5)
    with refused("3 classes", "--class"):
        pixel_attention(model, image)
    with refused("class 3", "0 ... 2"):
        pixel_attention(model, image, label=3)


@sweep("name", ["decoder", "sparse-transformer", "transformer-xl"])
def test_other_members_are_seen_too(name: str) -> None:
    from formers.family.images import on_images

    spec = formers.spec(name, vocab=17, dim=16, heads=2, layers=2, length=30)
    view = pixel_attention(formers.build(on_images(spec, 5, 6, levels=17)), torch.randint(17, (5, 6, 1)), (3, 3))
    close(view.weights.sum(dim=(3, 4)) + view.start, torch.ones(2, 2, 1), 1e-5)


def test_mistakes_are_one_sentence() -> None:
    model, image = example()
    with refused("pixel 5,0", "4,5"):
        pixel_attention(model, image, (5, 0))
    with refused("channel=1"):
        pixel_attention(model, image, channel=1)
    with refused("(5, 6)", "(5, 6, 1)"):
        pixel_attention(model, image[..., 0])
    with refused("class 1", "not conditioned"):
        pixel_attention(model, image, label=1)
    with refused("not a model of images"):
        pixel_attention(formers.create("decoder", vocab=17, dim=16, heads=2, layers=1), image)
    with refused("second image"):
        pixel_attention(formers.create("image-transformer", condition="small", dim=16, heads=2, layers=1, levels=17), image)
    with refused("layer=2", "0 ... 1"):
        pixel_attention(model, image).chosen(2)


@pytest.fixture
def view() -> PixelAttention:
    torch.manual_seed(3)
    model, image = example(**GRID)
    return pixel_attention(model, image, (3, 4), every=True)


def test_orange_covers_what_is_attended(view: PixelAttention) -> None:
    weights, _ = view.chosen(0, 1)
    picture, plain = over_image(view, weights, float(weights.max())), dimmed(view).round()
    assert picture[np.unravel_index(int(weights.argmax()), (5, 6))].tolist() == list(ORANGE)
    assert picture[view.pixel].tolist() == list(QUERY)
    untouched = (weights == 0).numpy()
    assert (picture[untouched] == plain[untouched]).all()
    later = ~view.known
    later[view.pixel] = False
    assert (plain[later][:, 2] > plain[later][:, 0]).all()  # blue
    assert (plain[view.known][:, 0] == plain[view.known][:, 2]).all()  # grey


def test_pictures_are_written(view: PixelAttention, tmp_path: Path) -> None:
    for name, begins in {"a.png": b"\x89PNG", "a.svg": b"<?xml"}.items():
        assert save_pixel_attention(view, tmp_path / name, model="m").read_bytes().startswith(begins)
    every = (tmp_path / "a.png").read_bytes()
    assert save_pixel_attention(view, tmp_path / "a.png", 1, 0).read_bytes() != every


def test_the_terminal_shows_the_map(view: PixelAttention) -> None:
    weights, start = view.chosen(1)
    lines = draw_pixel_attention(view, layer=1).split("\n")
    for row in range(5):
        for column in range(6):
            mark = lines[row].ljust(14)[1 + 2 * column]
            if (row, column) == view.pixel:
                assert mark == "Q"
            elif not view.known[row, column]:
                assert mark == " "
            else:
                assert (mark == "·") == (float(weights[row, column]) == 0.0)
    text = " ".join(lines[6:])
    assert f"start {100 * start:.1f}%" in text
    assert "Layer 1" in text
    assert max(map(len, lines)) <= 80
    assert draw_pixel_attention(view, encoding="ascii").isascii()
    assert "\x1b[38;2;0;45;130" in draw_pixel_attention(view, colours="24bit")


def test_facts_have_all_layers_and_heads(view: PixelAttention) -> None:
    facts = json.loads(json.dumps(pixel_attention_facts(view)))
    assert np.abs(np.array(facts["weights"]) - view.weights[:, :, view.query].numpy()).max() < 1e-4
    assert facts["pixel"] == [3, 4]
    assert np.array(facts["start"]).shape == (2, 2)


def test_the_page_loads_nothing(view: PixelAttention) -> None:
    page = image_attention_page(view, "<b>model</b>")
    assert "<b>model" not in page
    assert "default-src 'none'" in page
    links = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"'\s)>]+)", page)
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "fetch(" not in page
    assert "{{" not in page


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_draws_what_python_draws(view: PixelAttention, tmp_path: Path) -> None:
    path = save_image_attention_page(view, tmp_path / "a.html", "m", 1, 0)
    script = Path(__file__).with_name("page_dom.js")
    done = subprocess.run(["node", str(script), str(path), "20", "0", "-1"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    def far(pixels: list[int], wanted: Any) -> int:
        return int(np.abs(np.array(pixels).reshape(5, 6, 3) - wanted.astype(int)).max())

    weights, _ = view.chosen(1, 0)
    assert far(found["first"]["picture"], over_image(view, weights, float(weights.max()))) <= 2
    assert found["first"]["title"] == "Layer 1, head 0"
    best = int(weights.argmax())
    assert found["first"]["list"][0] == [
        f"row {best // 6}, column {best % 6}",
        f"{100 * float(weights.max()):.{1 if weights.max() >= 0.1 else 2}f} %",
    ]
    assert found["first"]["list"][-1][0] == "start"
    moved = PixelAttention(**{**view.__dict__, "pixel": (3, 2)})
    mean, _ = moved.chosen(0)
    assert far(found["then"]["picture"], over_image(moved, mean, float(mean.max()))) <= 2
    assert found["then"]["says"].startswith("The pixel at row 3, column 2")
    top = max(float(moved.chosen(layer, head)[0].max()) for layer in range(2) for head in (0, 1))
    assert len(found["grid"]) == 6
    assert far(found["grid"][5], over_image(moved, moved.chosen(1, 1)[0], top)) <= 2
    assert found["tip"].startswith("row 0, column 0")
    assert "every pixel can be chosen" in found["footer"]
