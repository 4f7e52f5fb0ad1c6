"""Images as rows of bytes: the two formats, the named sets, and batches that predict every byte."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import pickle
import tarfile

import numpy as np
import pytest
import torch

from formers.data import Bytes, Rows, open_pictures, open_text
from formers.data.catalogue import IMAGES, Images, Package
from formers.data.download import fetch
from formers.data.image import read_cifar, read_idx
from helpers import refused

BEGIN = Bytes(specials=("begin",))


def idx(images):
    return bytes([0, 0, 8, images.ndim]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()


def pin(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_an_idx_file_is_what_its_head_says(tmp_path):
    images = random_images(3, 4, 5)
    path = tmp_path / "it"
    path.write_bytes(idx(images))
    assert np.array_equal(read_idx(path), images)
    for broken in (b"", idx(images)[:-1], idx(images) + b"x", b"\x00\x00\x0d" + idx(images)[3:], b"\x00\x00\x08\xff", pickle.dumps(images)):
        path.write_bytes(broken)
        with refused(str(path)):
            read_idx(path)


def test_planes_of_cifar_become_channels_of_pixels(tmp_path):
    images = random_images(2, 32, 32, 3)
    path = tmp_path / "it"
    path.write_bytes(b"".join(bytes([9]) + image.transpose(2, 0, 1).tobytes() for image in images))
    assert np.array_equal(read_cifar(path), images)
    for broken in (b"", path.read_bytes()[:-1]):
        path.write_bytes(broken)
        with refused(str(path), "3,073"):
            read_cifar(path)


@pytest.fixture
def small(monkeypatch):
    """A set of three files of four images, 2 x 3 bytes each; its content by file."""
    contents = {f"part{i}": idx(random_images(4, 2, 3, seed=i)) for i in range(3)}
    package = Package({f"in/{name}": pin(content) for name, content in contents.items()}, (), ("all.tar.gz",), folder="Small/raw")
    parts = {"train": (("part0", 0, 3), ("part1", 0, 4)), "valid": (("part0", 3, 4),), "test": (("part2", 0, 4),)}
    monkeypatch.setitem(IMAGES, "small", Images((package,), "idx", (2, 3, 1), parts))
    return contents


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "given" / "Small" / "raw"
    place.mkdir(parents=True)
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "given"))
    return place


@pytest.mark.parametrize("form", ["plain", "gz", "xz", "tar"])
def test_images_are_found_however_they_are_packed(small, folder, form):
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
    found = open_pictures("small")
    assert found.about == "small, 7 images of 2 x 3 x 1 bytes to learn from, 1 held out, 4 to test"
    assert found.cells == 6
    first, second, third = (random_images(4, 2, 3, seed=i).reshape(4, 6) for i in range(3))
    assert found.parts["train"].tolist() == [*first[:3].tolist(), *second.tolist()]
    assert found.parts["valid"].tolist() == first[3:].tolist()
    assert found.parts["test"].tolist() == third.tolist()
    with refused("small has no dev part"):
        found.parts["dev"]


def test_files_to_learn_from_that_were_not_given_are_left_out_and_that_is_said(small, folder, caplog):
    for name in ("part0", "part2"):
        (folder / name).write_bytes(small[name])
    found = open_pictures("small")
    assert len(found.parts["train"]) == 3
    assert "2 of its 3 files" in caplog.text
    whole = found.fingerprint
    (folder / "part1").write_bytes(small["part1"])
    assert open_pictures("small").fingerprint != whole


def test_what_is_not_the_published_file_is_refused(small, folder):
    for name, content in small.items():
        (folder / name).write_bytes(content[:-1] + b"?")
    with refused("part0", "published"):
        open_pictures("small")
    for name, content in small.items():
        (folder / name).unlink()
        (folder / f"{name}.xz").write_bytes(lzma.compress(content)[:-9])
    with refused("part0.xz", "unpacked"):
        open_pictures("small")
    with refused("small", "images"):
        open_text("small")


def test_rows_are_predicted_whole_from_a_begin_token():
    table = torch.arange(60, dtype=torch.uint8).view(10, 6)
    rows = Rows({"train": table, "valid": table[:5]}, 6, BEGIN)
    batch = rows.train_batch(4, seed=1, step=2)
    assert batch["targets"].tolist() == [table[row[0] // 6].tolist() for row in batch["targets"].tolist()]
    assert batch["tokens"].tolist() == [[256, *row[:-1]] for row in batch["targets"].tolist()]
    again = rows.train_batch(4, seed=1, step=2, rows=slice(1, 3))
    assert all(again[name].equal(batch[name][1:3]) for name in batch)
    assert not rows.train_batch(4, seed=1, step=3)["targets"].equal(batch["targets"])
    judged = torch.cat([b["targets"] for b in rows.eval_batches(2)])
    assert judged.tolist() == table[:5].tolist()
    with refused("stride=3"):
        next(rows.eval_batches(2, stride=3))
    with refused("'begin'"):
        Rows({"train": table}, 6, Bytes())


def test_the_published_sets_are_there(published):
    digits = open_pictures("mnist")
    assert [len(digits.parts[part]) for part in ("train", "valid", "test")] == [55_000, 5_000, 10_000]
    assert digits.parts["train"].shape[1] == 784
    assert round(torch.cat([digits.parts[part] for part in ("train", "valid")]).double().mean().item() / 255, 4) == 0.1307  # as published
    (package,) = IMAGES["cifar10"].packages
    pins = {name: pin for name, pin in package.files.items() if "test" in name}
    colours = read_cifar(fetch("cifar10", package._replace(files=pins))["test_batch.bin"])
    assert colours.shape == (10_000, 32, 32, 3)
    assert [round(mean / 255, 3) for mean in colours.mean(axis=(0, 1, 2))] == [0.494, 0.485, 0.45]
