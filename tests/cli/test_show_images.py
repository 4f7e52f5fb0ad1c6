"""`formers show pattern` and `formers show attention` of images: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import formers
from commands import command
from formers.cli import show
from formers.cli.options import parse_pixel, parse_size
from formers.inspect.draw.image_attention import draw_pixel_attention
from formers.inspect.measure.image_attention import pixel_attention
from helpers import refused, sweep


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models of images, a model of text, and an image."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = dict(dim=16, heads=2, layers=2)
    formers.create("image-transformer", levels=17, layout="2d", query_block=[3, 4], **small).save_pretrained(folder / "grid")
    labelled = formers.create("image-transformer", levels=17, condition="class", labels=2, **small)
    labelled.labels = ("cat", "dog")
    labelled.save_pretrained(folder / "labelled")
    formers.create("image-transformer", channels=3, head="mixture", **small).save_pretrained(folder / "mixture")
    formers.create("image-transformer", levels=17, condition="small", **small).save_pretrained(folder / "scaled")
    formers.create("decoder", vocab=256, **small).save_pretrained(folder / "text")
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(folder / "x.png")
    return folder


def run(*words: object) -> str:
    """What a command prints; an error that is not typer's own comes through."""
    result = CliRunner().invoke(show.app, [str(word) for word in words], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pixel_s_attention_is_drawn(models: Path) -> None:
    from formers.data.images.single import read_single

    image = read_single("digits:3", (8, 8, 1), 17).levels
    view = pixel_attention(formers.load(models / "grid"), image, (5, 2))
    text = run("attention", models / "grid", "--image", "digits:3", "--pixel", "5,2", "--layer", 1)
    assert text.startswith(draw_pixel_attention(view, 1))
    assert "--out attention.html" in text
    assert "\x1b" not in text
    facts = json.loads(run("attention", models / "grid", "--image", "digits:3", "--pixel", "5,2", "--json"))
    assert facts["pixel"] == [5, 2]
    assert facts["model"] == "image-transformer, grid"


@sweep("name", ["grid", "labelled", "mixture"])
def test_pages_and_pictures_are_written(models: Path, tmp_path: Path, name: str) -> None:
    options = ("--image", models / "x.png", *(("--class", "dog") if name == "labelled" else ()))
    for file, begins in {"a.html": b"<!doctype html>", "a.png": b"\x89PNG", "a.svg": b"<?xml"}.items():
        assert run("attention", models / name, *options, "--out", tmp_path / file) == f"wrote {tmp_path / file}\n"
        assert (tmp_path / file).read_bytes().startswith(begins)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert json.loads(page.split('id="data">')[1].split("</script>")[0])["queries"] == list(range(64))


def test_a_resized_image_is_said(models: Path) -> None:
    done = command("show", "attention", str(models / "grid"), "--image", str(models / "x.png"))
    assert done.returncode == 0
    assert "10 x 10 pixels: resized and cropped to 8 x 8" in done.stderr
    assert "converted to grey" in done.stderr
    assert "resized" not in command("-q", "show", "attention", str(models / "grid"), "--image", str(models / "x.png")).stderr


def test_text_and_images_are_distinguished(models: Path) -> None:
    grid, text = models / "grid", models / "text"
    with refused("exactly one of --text and --image"):
        run("attention", grid)
    with refused("exactly one of --text and --image"):
        run("attention", grid, "--text", "a", "--image", "digits:0")
    with refused("model of images", "--image"):
        run("attention", grid, "--text", "a")
    with refused("not a model of images", "--text"):
        run("attention", text, "--image", "digits:0")
    with refused("--pixel 1,2", "--image"):
        run("attention", text, "--text", "a", "--pixel", "1,2")
    with refused("--target b", "--text"):
        run("attention", grid, "--image", "digits:0", "--target", "b")
    with refused("second image"):
        run("attention", models / "scaled", "--image", "digits:0")
    with refused("model of images", "formers generate RUN --out"):
        run("alignment", models / "scaled", "--text", "a")
    with refused("bird", "cat"):
        run("attention", models / "labelled", "--image", "digits:0", "--class", "bird")
    with refused("2 classes"):
        run("attention", models / "labelled", "--image", "digits:0")
    with refused("pixel 8,8", "7,7"):
        run("attention", grid, "--image", "digits:0", "--pixel", "8,8")
    with refused("'8'", "ROW,COLUMN"):
        run("attention", grid, "--image", "digits:0", "--pixel", "8")


def test_patterns_of_images_are_drawn(tmp_path: Path) -> None:
    member = ("pattern", "image-transformer", "--set", "layout=2d", "--set", "height=6", "--set", "width=8", "--set", "query_block=[2,3]")
    text = run(*member, "--set", "memory_block=[1,2]", "--pixel", "3,4")
    assert "Q is the query, pixel 3,4." in text
    facts = json.loads(run(*member, "--set", "memory_block=[1,2]", "--pixel", "3,4", "--json"))
    assert facts["length"] == 48
    assert facts["seen"][0][3] == ".++#Q   "
    assert "wrote" in run(*member, "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (
        json.loads(
            run("pattern", "local-grid", "--set", "height=4", "--set", "width=4", "--set", "query=[2,2]", "--set", "memory=[1,1]", "--json")
        )["length"]
        == 16
    )
    assert json.loads(run("pattern", "strided", "--set", "stride=4", "--size", "4x4x1", "--json"))["position"] == 10
    assert json.loads(run("pattern", "decoder", "--json"))["length"] == 32
    with refused("--pixel 1,1", "--size"):
        run("pattern", "causal", "--pixel", "1,1")


def test_pixels_and_sizes_are_read() -> None:
    assert parse_pixel(" 10, 12") == (10, 12)
    assert parse_size("16x8") == (16, 8, 1)
    assert parse_size("16X8x3") == (16, 8, 3)
    for wrong in ("", "1", "1,", "a,b", "-1,2", "1,2,3"):
        with refused("ROW,COLUMN"):
            parse_pixel(wrong)
    for wrong in ("", "8", "0x8", "8x", "1x2x3x4"):
        with refused("HEIGHTxWIDTH"):
            parse_size(wrong)
