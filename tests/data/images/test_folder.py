"""Folders and globs of image files: the split, the classes, one size, bad files."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from formers.data import kind_of
from formers.data.images import ImageOptions, decoded, open_images
from helpers import refused

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "pictures"
    place.mkdir()
    return place


def save(path, shade, size=(3, 2), mode="L"):
    """Saves an image of one shade; size is width, height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(path)


def shades(data, part):
    return [int(image[0, 0, 0]) for image in data.parts[part].images]


def test_a_tenth_is_held_out_by_name(root):
    for i in range(20):
        save(root / f"{i:02}.png", i)
    found = open_images(root)
    assert kind_of(root) == "images"
    assert (found.shape, found.levels, found.labels, found.source) == ((2, 3, 1), 256, None, str(root))
    assert len(shades(found, "valid")) == 2
    assert sorted(shades(found, "train") + shades(found, "valid")) == list(range(20))
    assert "18 training, 2 validation images of 2 x 3 x 1" in found.about
    assert "2 of 20 held out" in found.about
    with refused("no test part"):
        found.parts["test"]


def test_folders_are_classes(root):
    for i in range(6):
        save(root / "dog" / f"{i}.png", i)
        save(root / "ant" / "deeper" / f"{i}.jpg", 100 + i)
    found = open_images(root)
    assert found.labels == ("ant", "dog")
    for part in ("train", "valid"):
        assert found.parts[part].labels.tolist() == [int(shade < 50) for shade in shades(found, part)]
    save(root / "loose.png", 50)
    assert open_images(root).labels is None


def test_split_folders_are_the_split(root):
    for i, (part, kind) in enumerate([("train", "a"), ("train", "b"), ("val", "b"), ("test", "a")]):
        save(root / part / kind / "it.png", i)
    found = open_images(root)
    assert {part: shades(found, part) for part in found.parts} == {"train": [0, 1], "valid": [2], "test": [3]}
    assert [found.parts[part].labels.tolist() for part in found.parts] == [[0, 1], [1], [0]]
    assert "split by folders" in found.about
    save(root / "test" / "c" / "it.png", 5)
    with refused("'c'", "test part only"):
        open_images(root)
    (root / "test" / "c" / "it.png").rename(root / "it.png")
    with refused("it.png", "train"):
        open_images(root)


def test_without_valid_some_of_train_is_held_out(root):
    for i in range(4):
        save(root / "train" / f"{i}.png", i)
    save(root / "test" / "it.png", 9)
    found = open_images(root)
    assert {part: len(shades(found, part)) for part in found.parts} == {"train": 3, "valid": 1, "test": 1}
    assert shades(found, "test") == [9]


def test_globs_and_other_files(root):
    for i in range(3):
        save(root / f"{i}.png", i)
        save(root / "inner" / f"{i}.webp", 200)
    (root / "notes.txt").write_text("not an image")
    save(root / ".hidden.png", 100)
    assert kind_of(f"{root}/*.png") == "images"
    assert sorted(shades(open_images(f"{root}/*.png"), "train") + shades(open_images(f"{root}/*.png"), "valid")) == [0, 1, 2]
    assert sum(len(open_images(root).parts[part].images) for part in ("train", "valid")) == 6
    for i in range(7):
        (root / f"{i}.txt").write_text("a text")
    assert kind_of(root) != "images"  # more texts than images
    assert kind_of(root / "notes.txt") != "images"
    with refused("notes.txt", ".npz"):
        open_images(root / "notes.txt")
    with refused("nowhere", "does not exist"):
        open_images(root / "nowhere")
    with refused("no image"):
        open_images(f"{root}/*.txt")


def test_symbolic_links_are_skipped(root, tmp_path):
    for i in range(2):
        save(root / f"{i}.png", i)
    save(tmp_path / "elsewhere" / "it.png", 99)
    os.symlink(tmp_path / "elsewhere" / "it.png", root / "link.png")
    os.symlink(tmp_path / "elsewhere", root / "folder")
    for data in (root, f"{root}/**/*.png"):
        found = open_images(data)
        assert sorted(shades(found, "train") + shades(found, "valid")) == [0, 1]


def test_one_colour_image_makes_all_of_them_colour(root):
    for i in range(3):
        save(root / f"{i}.png", 10 * i)
    save(root / "3.png", 30, mode="RGB")
    found = open_images(root)
    assert found.shape == (2, 3, 3)
    whole = torch.cat([found.parts[part].images for part in ("train", "valid")])[:, 0, 0]
    assert sorted(whole.tolist()) == [[0, 0, 0], [10, 10, 10], [20, 20, 20], [30, 0, 0]]
    assert open_images(root, ImageOptions(grey=True)).shape == (2, 3, 1)


def test_sizes_must_agree_unless_one_is_given(root):
    save(root / "a.png", 1, (4, 2))
    save(root / "b.png", 2, (4, 2))
    save(root / "c.png", 3, (6, 5))
    with refused("a.png (2 x 4)", "c.png (5 x 6)", "give height and width"):
        open_images(root)
    found = open_images(root, size=(3, 2))
    assert found.shape == (3, 2, 1)
    assert "Lanczos" in found.about
    assert found.fingerprint != open_images(root, size=(2, 2)).fingerprint


def test_one_image_is_refused(root):
    save(root / "it.png", 1)
    for data, said in ((root, "only 1 image"), (root / "it.png", "one image only")):
        with refused("at least two", said):
            open_images(data)


def test_bad_files_are_reported_together_or_left_out(root, caplog):
    for i in range(3):
        save(root / f"good{i}.png", i)
    (root / "bad1.png").write_bytes(b"")
    (root / "bad2.jpg").write_text("text")
    (root / "bad3.png").write_bytes((root / "good1.png").read_bytes()[:50])
    (root / "bad4.webp").write_bytes(b"RIFF")
    with refused("4 of 7 files", "bad1.png (empty)", "bad2.jpg", "bad3.png", "and 1 more", "skip_bad=true"):
        open_images(root)
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        found = open_images(root, ImageOptions(skip_bad=True))
        assert sorted(shades(found, "train") + shades(found, "valid")) == [0, 1, 2]
        (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "4 unreadable files" in said
        assert "bad4.webp" in said
    for i in range(3):
        (root / f"good{i}.png").unlink()
    with refused("no file that can be read"):
        open_images(root, ImageOptions(skip_bad=True))


def test_decoded_images_are_cached_until_a_file_changes(root, monkeypatch):
    for i in range(3):
        save(root / f"{i}.png", i)
    read, calls = decoded.read_image, []
    monkeypatch.setattr(decoded, "read_image", lambda path, size: calls.append(path) or read(path, size))
    first = open_images(root)
    assert len(calls) == 3
    again = open_images(root)
    assert len(calls) == 3
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.parts["train"].images, first.parts["train"].images)
    save(root / "1.png", 77)
    assert open_images(root).fingerprint != first.fingerprint
    assert len(calls) == 6
    assert sorted(path.name for path in root.iterdir()) == ["0.png", "1.png", "2.png"]
