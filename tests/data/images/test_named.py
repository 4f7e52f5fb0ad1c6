"""Named sets of images: files, labels, splits, binary versions of MNIST, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
import tarfile

import numpy as np
import pytest
import torch

from formers.data import kind_of, open_text
from formers.data.catalogue import IMAGE_NAMES, IMAGES, NAMES, OFFERED, Images, Package
from formers.data.images import ImageOptions, evaluated, named, open_images
from helpers import refused

PARTS = ("train", "valid", "test")


def idx(images):
    return bytes([0, 0, 8, images.ndim]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pin(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def small(monkeypatch):
    """A set of three files of four 2 x 3 images, and labels of the first and the last: its content by file."""
    contents = {f"part{i}": idx(random_images(4, 2, 3, seed=i)) for i in range(3)}
    contents |= {f"labels{i}": idx(np.arange(4, dtype=np.uint8) + i) for i in range(3)}
    package = Package({f"in/{name}": pin(content) for name, content in contents.items()}, (), ("all.tar.gz",), folder="Small/raw")
    parts = {"train": (("part0", 0, 3), ("part1", 0, 4)), "valid": (("part0", 3, 4),), "test": (("part2", 0, 4),)}
    labels = {f"part{i}": f"labels{i}" for i in range(3)}
    monkeypatch.setitem(IMAGES, "small", Images((package,), "idx", (2, 3, 1), parts, labels, tuple("abcdef")))
    return contents


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "given" / "Small" / "raw"
    place.mkdir(parents=True)
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "given"))
    return place


@pytest.mark.parametrize("form", ["plain", "gz", "xz", "tar"])
def test_files_are_found_plain_or_packed(small, folder, form):
    if form == "tar":
        with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
            for name, content in small.items():
                about = tarfile.TarInfo(f"in/{name}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    else:
        pack, end = {"plain": (bytes, ""), "gz": (gzip.compress, ".gz"), "xz": (lzma.compress, ".xz")}[form]
        for name, content in small.items():
            (folder / f"{name}{end}").write_bytes(pack(content))
    assert kind_of("small") == "images"
    found = open_images("small")
    assert found.about == "small: 7 training, 1 validation, 4 test images of 2 x 3 x 1; 256 levels; 6 classes"
    assert (found.shape, found.levels, found.labels, found.source) == ((2, 3, 1), 256, tuple("abcdef"), "small")
    first, second, third = (random_images(4, 2, 3, 1, seed=i) for i in range(3))
    assert found.parts["train"].images.tolist() == [*first[:3].tolist(), *second.tolist()]
    assert found.parts["train"].labels.tolist() == [0, 1, 2, 1, 2, 3, 4]
    assert found.parts["valid"].images.tolist() == first[3:].tolist()
    assert found.parts["test"].images.tolist() == third.tolist()
    assert found.parts["test"].labels.tolist() == [2, 3, 4, 5]
    with refused("small has no dev part"):
        found.parts["dev"]


def test_missing_training_files_are_left_out_with_a_warning(small, folder, caplog):
    for name in small:
        if name not in ("part1", "labels1"):
            (folder / name).write_bytes(small[name])
    found = open_images("small")
    assert len(found.parts["train"].images) == 3
    assert "4 of its 6 files" in caplog.text
    for name in ("part1", "labels1"):
        (folder / name).write_bytes(small[name])
    assert open_images("small").fingerprint != found.fingerprint


def test_other_files_than_the_published_are_refused(small, folder):
    for name, content in small.items():
        (folder / name).write_bytes(content[:-1] + b"?")
    with refused("part0", "published"):
        open_images("small")
    with refused("small", "images"):
        open_text("small")


def test_names_are_offered_and_are_not_text():
    assert IMAGE_NAMES == ("digits", "mnist", "cifar10", "mnist-static", "mnist-threshold", "mnist-dynamic")
    assert set(IMAGE_NAMES) <= set(NAMES) & set(OFFERED)
    for name in IMAGE_NAMES:
        assert kind_of(name) == "images"
        with refused(name, "images"):
            open_text(name)


def test_digits_come_from_scikit_learn():
    pytest.importorskip("sklearn")
    found = open_images("digits")
    assert (found.shape, found.levels, found.labels) == ((8, 8, 1), 17, tuple("0123456789"))
    assert [len(found.parts[part].images) for part in PARTS] == [1_437, 180, 180]
    assert "1,437 training, 180 validation, 180 test" in found.about
    assert "fixed permutation" in found.about
    whole = torch.cat([found.parts[part].images for part in PARTS])
    assert len(torch.unique(whole.flatten(1), dim=0)) == 1_797
    assert int(whole.max()) == 16
    assert torch.cat([found.parts[part].labels for part in PARTS]).bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_the_same_from_a_file(published):
    pytest.importorskip("sklearn")
    from_file = open_images("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORMERS_DATA")
        assert open_images("digits").fingerprint == from_file.fingerprint


def test_digits_without_scikit_learn_name_the_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused("pip install 'formers[images]'", "digits/digits.csv.gz"):
        open_images("digits")


def test_static_mnist_without_its_files_is_refused(tmp_path, monkeypatch):
    files = [f"binarized_mnist_{part}.amat" for part in PARTS]
    with refused(*files, "mnist-dynamic", "mnist-threshold"):
        open_images("mnist-static")
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path))
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "MNIST" / files[0]).write_text("0")
    with refused(*files[1:]) as _:
        open_images("mnist-static")


def test_static_mnist_is_read_from_its_files(tmp_path, monkeypatch):
    counts = {"train": 3, "valid": 1, "test": 2}
    monkeypatch.setattr(named, "STATIC_COUNTS", counts)
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path))
    place = tmp_path / "binarized_mnist"
    place.mkdir()
    rows = {part: np.random.default_rng(n).integers(0, 2, (n, 784)) for part, n in counts.items()}
    for part, row in rows.items():
        (place / f"binarized_mnist_{part}.amat").write_text("".join(" ".join(map(str, one)) + " \n" for one in row))
    found = open_images("mnist-static")
    assert (found.shape, found.levels, found.labels, found.binary) == ((28, 28, 1), 2, None, "static")
    for part, row in rows.items():
        assert found.parts[part].images.flatten(1).tolist() == row.tolist()
    monkeypatch.setitem(counts, "test", 5)
    with refused("binarized_mnist_test.amat", "2 images", "5"):
        open_images("mnist-static").parts["test"]


def test_more_levels_than_there_are_and_sizes_of_few_levels_are_refused():
    pytest.importorskip("sklearn")
    assert int(open_images("digits", ImageOptions(levels=4)).parts["train"].images.max()) == 3
    with refused("levels=32", "17 levels of digits"):
        open_images("digits", ImageOptions(levels=32))
    with refused("digits", "16 x 16", "leave height and width out"):
        open_images("digits", size=(16, 16))


def test_the_published_sets_are_there(published):
    found = open_images("mnist")
    assert [len(found.parts[part].images) for part in PARTS] == [55_000, 5_000, 10_000]
    pixels = torch.cat([found.parts[part].images for part in ("train", "valid")])
    assert round(pixels.double().mean().item() / 255, 4) == 0.1307  # as published
    assert found.parts["test"].labels[:5].tolist() == [7, 2, 1, 0, 4]
    binary = open_images("mnist-threshold")
    assert binary.parts["valid"].images.equal((found.parts["valid"].images >= 128).to(torch.uint8))
    drawn = open_images("mnist-dynamic")
    assert (drawn.levels, drawn.binary) == (2, "dynamic")
    assert drawn.parts["valid"].images.equal(found.parts["valid"].images)
    assert abs(evaluated(drawn, "valid").images.double().mean() - found.parts["valid"].images.double().mean() / 255) < 1e-3
    assert len({data.fingerprint for data in (found, binary, drawn)}) == 3
    colours = open_images("cifar10")
    test = colours.parts["test"]
    assert test.images.shape == (10_000, 32, 32, 3)
    assert [round(mean / 255, 3) for mean in test.images.double().mean((0, 1, 2)).tolist()] == [0.494, 0.485, 0.45]
    assert test.labels.bincount().tolist() == [1_000] * 10
    assert [colours.labels[i] for i in test.labels[:3]] == ["cat", "ship", "ship"]
