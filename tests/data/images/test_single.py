"""One image for a model: read, resized, converted, quantised, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from formers.data.images import evaluated, open_images
from formers.data.images.single import read_single
from helpers import refused


@pytest.fixture
def colour(tmp_path: Path) -> Path:
    path = tmp_path / "colour.png"
    Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)).save(path)
    return path


def test_an_image_of_the_model_s_shape_is_only_quantised(colour: Path) -> None:
    found = read_single(colour, (6, 4, 3), 256)
    assert found.levels.tolist() == torch.arange(72).view(6, 4, 3).tolist()
    assert found.levels.dtype == torch.int64
    assert found.notices == ()
    assert read_single(colour, (6, 4, 3), 16).levels.tolist() == (torch.arange(72).view(6, 4, 3) // 16).tolist()


def test_others_are_converted_and_that_is_said(colour: Path, tmp_path: Path) -> None:
    found = read_single(colour, (3, 3, 1), 256)
    assert found.levels.shape == (3, 3, 1)
    assert [("6 x 4" in line, "grey" in line) for line in found.notices] == [(True, False), (False, True)]
    Image.fromarray(np.full((5, 5), 77, dtype=np.uint8)).save(tmp_path / "grey.png")
    assert read_single(tmp_path / "grey.png", (5, 5, 3), 256).levels.unique().tolist() == [77]


def test_an_image_of_a_set_is_found_by_its_number() -> None:
    found = read_single("digits:7", (8, 8, 1), 17)
    assert torch.equal(found.levels, open_images("digits").parts["valid"].images[7].long())
    few = read_single("digits:7", (8, 8, 1), 4).levels
    assert torch.equal(few, found.levels * 4 // 17)


def test_mistakes_are_one_sentence(colour: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("text.png", "empty.png"):
        with refused(name, "PNG, JPEG or WebP"):
            read_single(tmp_path / name, (6, 4, 3), 256)
    with refused("nothing.png", "SET:NUMBER"):
        read_single("nothing.png", (6, 4, 3), 256)
    with refused("2 channels"):
        read_single(colour, (6, 4, 2), 256)
    with refused("1000", "256"):
        read_single(colour, (6, 4, 3), 1000)
    with refused("8 x 8 x 1 with 17 levels", "9 x 9 x 1 with 17 levels"):
        read_single("digits:0", (9, 9, 1), 17)
    with refused("180", "9999"):
        read_single("digits:9999", (8, 8, 1), 17)


def test_binary_images_are_those_of_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    from formers.data.images import single
    from formers.data.images.values import ImageData, ImageSet

    images = torch.randint(256, (3, 4, 4, 1)).to(torch.uint8)
    data = ImageData({"valid": ImageSet(images, None)}, (4, 4, 1), 2, None, "", "", "", "dynamic")  # type: ignore[arg-type]
    monkeypatch.setattr(single, "open_images", lambda name, *rest: data)
    monkeypatch.setattr(single, "kind_of", lambda name: "images")
    assert torch.equal(read_single("set:2", (4, 4, 1), 2).levels, evaluated(data, "valid").images[2].long())
