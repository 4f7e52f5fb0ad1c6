"""`formers generate` with a run of images: samples, completions and sources to files, JSON and a pipe; mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import formers
from commands import command
from formers.data.images.single import read_single
from formers.generation import sample_images
from helpers import one_sentence, sweep

SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 1, "hidden": 8, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that were saved and never trained, a run, and images."""
    at = tmp_path_factory.mktemp("drawing")
    torch.manual_seed(1)
    sizes = {"height": 4, "width": 6, "levels": 5, **SMALL}
    formers.create("image-transformer", **sizes).save_pretrained(at / "plain")
    formers.create("image-transformer", condition="small", **sizes).save_pretrained(at / "small")
    formers.create("image-transformer", head="mixture", channels=3, **sizes).save_pretrained(at / "colour")
    left = formers.create("image-transformer", layout="2d", query_block=(4, 3), memory_block=(1, 1), **sizes)
    left.save_pretrained(at / "left")
    classes = formers.create("image-transformer", condition="class", labels=3, **sizes)
    classes.labels = ("cat", "dog", "fox")
    classes.save_pretrained(at / "classes")
    formers.create("image-transformer", **{**sizes, "height": 1}).save_pretrained(at / "row")
    formers.create("decoder", vocab=256, length=16, **SMALL).save_pretrained(at / "text")
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(256, size=(4, 6)).astype(np.uint8)).save(at / "image.png")
    Image.fromarray(random.integers(256, size=(2, 3)).astype(np.uint8)).save(at / "little.png")
    (at / "broken.png").write_text("no image")
    np.save(at / "data.npy", random.integers(5, size=(20, 4, 6)).astype(np.uint8))
    formers.train("image-transformer", at / "data.npy", at / "run", steps=1, batch=2, quiet=True, levels=5, **SMALL)
    return at


def run(folder: Path, model: str, *words: str) -> tuple[str, str]:
    """What a command that succeeds writes to standard output and standard error."""
    found = command("generate", str(folder / model), *words, cwd=folder)
    assert found.returncode == 0, found.stderr
    return found.stdout, found.stderr


def drawn(folder: Path, model: str, *words: str) -> dict[str, Any]:
    """The record of --json."""
    return json.loads(run(folder, model, *words, "--json")[0])


def test_json_has_the_images_and_their_likelihood(folder: Path) -> None:
    found = drawn(folder, "plain", "--samples", "3", "--seed", "7")
    wanted = sample_images(formers.load(folder / "plain"), 3, seed=7)
    assert found["images"] == wanted.images.tolist()
    assert (found["levels"], found["seed"], found["out"]) == (5, 7, None)
    assert wanted.nats is not None
    assert found["nats"] == pytest.approx(wanted.nats.tolist(), abs=1e-3)
    assert found["bits_per_dimension"] == pytest.approx(float(wanted.nats.mean()) / 24 / np.log(2))
    assert "nats" not in drawn(folder, "plain", "--temperature", "0.5")


def test_a_seed_is_said_so_that_images_can_be_drawn_again(folder: Path) -> None:
    first = drawn(folder, "plain")
    assert drawn(folder, "plain", "--seed", str(first["seed"]))["images"] == first["images"]


@sweep("model", ["plain", "colour", "left"])
def test_png_and_gif(folder: Path, tmp_path: Path, model: str) -> None:
    out, err = run(folder, model, "--samples", "4", "--seed", "1", "--out", str(tmp_path / "grid.png"))
    assert (tmp_path / "grid.png").name in out + err
    picture = np.asarray(Image.open(tmp_path / "grid.png").convert("RGB"))
    images = sample_images(formers.load(folder / model), 4, seed=1).images
    wanted = np.asarray(images).astype(np.float64) * 255 / 4
    colours = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}
    for pixel in np.broadcast_to(wanted, (4, 4, 6, 3)).reshape(-1, 3):
        assert min(np.abs(np.array(colour) - pixel).max() for colour in colours) <= 1, "a pixel is not in the picture"
    run(folder, model, "--samples", "2", "--seed", "1", "--out", str(tmp_path / "grow.gif"))
    with Image.open(tmp_path / "grow.gif") as film:
        assert film.n_frames > 2


def test_a_completion_keeps_its_rows(folder: Path, tmp_path: Path) -> None:
    image = torch.from_numpy(np.asarray(Image.open(folder / "image.png")).copy()).long() * 5 // 256
    for keep, part in (("top", slice(2)), ("3", slice(3)), ("1", slice(1))):
        found = torch.tensor(drawn(folder, "plain", "--image", "image.png", "--keep", keep, "--samples", "2")["images"])
        assert torch.equal(found[:, part, :, 0], image[part].expand(2, -1, -1))
    found = torch.tensor(drawn(folder, "left", "--image", "image.png", "--keep", "left")["images"])
    assert torch.equal(found[0, :, :3, 0], image[:, :3])
    record = drawn(folder, "plain", "--image", "image.png", "--keep", "top", "--seed", "2")
    assert record["bits_per_dimension"] == pytest.approx(record["nats"][0] / 12 / np.log(2), rel=1e-4)
    for name in ("half.png", "half.gif"):
        run(folder, "plain", "--image", "image.png", "--keep", "top", "--out", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 100


def test_a_kept_image_without_a_cell_to_draw(folder: Path) -> None:
    record = drawn(folder, "row", "--image", "image.png", "--keep", "bottom")
    assert record["nats"] == [0.0]
    assert "bits_per_dimension" not in record


def test_a_source_is_scaled_up(folder: Path, tmp_path: Path) -> None:
    little = torch.from_numpy(np.asarray(Image.open(folder / "little.png")).copy()).long() * 5 // 256
    found = drawn(folder, "small", "--source", "little.png", "--seed", "3")
    wanted = sample_images(formers.load(folder / "small"), 1, seed=3, source=little[None, :, :, None])
    assert found["images"] == wanted.images.tolist()
    _, err = run(folder, "small", "--source", "image.png", "--out", str(tmp_path / "large.png"))
    assert "resized" in err
    assert (tmp_path / "large.png").exists()


def test_the_small_image_of_a_set_is_made_as_in_training(folder: Path, tmp_path: Path) -> None:
    found = drawn(folder, "small", "--source", "data.npy:1", "--seed", "3", "--out", str(tmp_path / "three_rows.png"))
    image = read_single(str(folder / "data.npy:1"), (4, 6, 1), 5).levels.double()
    means = torch.stack([image[y : y + 2, x : x + 2].mean().round() for y in (0, 2) for x in (0, 2, 4)]).long().view(1, 2, 3, 1)
    assert found["images"] == sample_images(formers.load(folder / "small"), 1, seed=3, source=means).images.tolist()
    run(folder, "small", "--source", "little.png", "--seed", "3", "--out", str(tmp_path / "two_rows.png"))
    assert Image.open(tmp_path / "three_rows.png").height > Image.open(tmp_path / "two_rows.png").height


def test_a_class_by_name_and_by_number(folder: Path) -> None:
    model = formers.load(folder / "classes")
    named = drawn(folder, "classes", "--class", "fox", "--seed", "3")["images"]
    assert named == drawn(folder, "classes", "--class", "2", "--seed", "3")["images"]
    assert named == sample_images(model, 1, seed=3, label=2).images.tolist()


def test_the_nearest_training_images(folder: Path, tmp_path: Path) -> None:
    run(folder, "run", "--samples", "2", "--nearest", "--out", str(tmp_path / "near.png"))
    plain = tmp_path / "plain.png"
    run(folder, "run", "--samples", "2", "--out", str(plain))
    assert Image.open(tmp_path / "near.png").size[1] > Image.open(plain).size[1]


@sweep("model", ["plain", "colour"])
@sweep("encoding", ["utf-8", "ascii"])
def test_a_pipe_gets_characters_and_no_colours(folder: Path, model: str, encoding: str) -> None:
    found = command("generate", str(folder / model), "--samples", "2", "--seed", "1", encoding=encoding)
    assert found.returncode == 0, found.stderr
    for text in (found.stdout, found.stderr):
        assert "\x1b" not in text
        assert all(c.isprintable() or c == "\n" for c in text)
    first, second = found.stdout.strip("\n").split("\n\n")  # an empty line between two images
    assert first.count("\n") == second.count("\n") > 1
    assert "seed 1" in found.stderr


@sweep(
    ("model", "words", "parts"),
    [
        ("plain", ("to be",), ("PROMPT is for text", "draws images")),
        ("plain", ("--prompt", "x"), ("--prompt is for text",)),
        ("plain", ("--stop", "x"), ("--stop is for text",)),
        ("plain", ("--beams", "2"), ("--beams is for text",)),
        ("plain", ("--min-p", "0.1"), ("--min-p is for text",)),
        ("plain", ("--repetition-penalty", "2"), ("--repetition-penalty is for text",)),
        ("plain", ("--max-new-tokens", "9"), ("--max-new-tokens is for text",)),
        ("plain", ("--interactive",), ("--interactive is for text",)),
        ("plain", ("--out", "x.jpg"), ("'x.jpg'", ".png", ".gif")),
        ("plain", ("--image", "image.png"), ("--image", "--keep")),
        ("plain", ("--keep", "top"), ("--image", "--keep")),
        ("plain", ("--image", "image.png", "--keep", "middle"), ("--keep middle", "top, bottom, left, right")),
        ("plain", ("--image", "image.png", "--keep", "4"), ("--keep 4", "1 ... 3")),
        ("plain", ("--image", "image.png", "--keep", "0"), ("--keep 0", "1 ... 3")),
        ("plain", ("--image", "image.png", "--keep", "bottom"), ("do not come first",)),
        ("plain", ("--image", "image.png", "--keep", "left"), ("layout=2d query_block=[4,3]",)),
        ("plain", ("--image", "nothing.png", "--keep", "top"), ("no file 'nothing.png'",)),
        ("plain", ("--image", "broken.png", "--keep", "top"), ("broken.png", "cannot be read as an image")),
        ("plain", ("--source", "little.png"), ("--source", "leave it out")),
        ("small", (), ("small image of", "--source FILE")),
        ("plain", ("--class", "1"), ("--class 1", "leave it out")),
        ("plain", ("--nearest",), ("--nearest", "--out")),
        ("plain", ("--nearest", "--out", "x.gif"), ("--nearest", ".png")),
        ("plain", ("--nearest", "--out", "x.png"), ("plain",)),
        ("plain", ("--samples", "0"), ("samples",)),
        ("plain", ("--temperature", "-1"), ("temperature",)),
        ("classes", (), ("conditioned on 3 classes", "--class")),
        ("classes", ("--class", "cow"), ("'cow'", "cat, dog, fox")),
        ("classes", ("--class", "3"), ("'3'", "cat, dog, fox")),
        ("small", (), ("small image", "2 x 3 x 1")),
        ("text", ("--class", "1"), ("--class is for images", "writes text")),
        ("text", ("--out", "x.png"), ("--out is for images",)),
        ("text", ("--nearest",), ("--nearest is for images",)),
    ],
)
def test_mistakes(folder: Path, model: str, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    found = command("generate", str(folder / model), *words, cwd=folder)
    assert found.returncode == 2, found.stdout
    assert found.stdout == ""
    one_sentence(found.stderr.strip())
    for part in parts:
        assert part in found.stderr, found.stderr
    assert not (folder / "x.png").exists()
