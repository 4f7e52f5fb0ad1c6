"""The published formats: what is read is what the bytes say, and broken files are refused."""

from __future__ import annotations

import pickle

import numpy as np

from formers.data.images.formats import read_amat, read_cifar, read_digits, read_idx
from helpers import refused


def idx(images):
    return bytes([0, 0, 8, images.ndim]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_idx_has_the_dimensions_of_its_header(tmp_path):
    images = random_images(3, 4, 5)
    path = tmp_path / "it"
    path.write_bytes(idx(images))
    assert np.array_equal(read_idx(path), images)
    for broken in (b"", idx(images)[:-1], idx(images) + b"x", b"\x00\x00\x0d" + idx(images)[3:], b"\x00\x00\x08\xff", pickle.dumps(images)):
        path.write_bytes(broken)
        with refused(str(path), "download it again"):
            read_idx(path)


def test_planes_of_cifar_become_channels(tmp_path):
    images = random_images(2, 32, 32, 3)
    path = tmp_path / "it"
    path.write_bytes(b"".join(bytes([i + 7]) + image.transpose(2, 0, 1).tobytes() for i, image in enumerate(images)))
    found, labels = read_cifar(path)
    assert np.array_equal(found, images)
    assert labels.tolist() == [7, 8]
    for broken in (b"", path.read_bytes()[:-1]):
        path.write_bytes(broken)
        with refused(str(path), "3,073"):
            read_cifar(path)


def test_amat_is_zeros_and_ones(tmp_path):
    path = tmp_path / "it.amat"
    path.write_text("0 1 1 0 0 1 \n1 1 1 0 0 0\n")
    assert read_amat(path, (2, 3)).tolist() == [[[0, 1, 1], [0, 0, 1]], [[1, 1, 1], [0, 0, 0]]]
    for broken in ("", "0 1 1", "0 1 2 0 0 1", "0 1 x 0 0 1 0"):
        path.write_text(broken)
        with refused(str(path), "6 values"):
            read_amat(path, (2, 3))


def test_digits_are_64_values_and_a_label(tmp_path):
    path = tmp_path / "digits.csv"
    path.write_text("".join(",".join(map(str, [*(i % 17 for i in range(n, n + 64)), n])) + "\n" for n in (3, 5)))
    images, labels = read_digits(path)
    assert images.shape == (2, 8, 8)
    assert images[0, 0].tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert labels.tolist() == [3, 5]
