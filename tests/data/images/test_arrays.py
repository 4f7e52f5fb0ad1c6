"""NumPy files: types, ranges, keys, labels, splits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from formers.data import kind_of
from formers.data.images import ImageOptions, open_images
from helpers import refused


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def saved(tmp_path):
    """Saves arrays: one as .npy, several as .npz; the file's name."""

    def save(images=None, **arrays):
        path = tmp_path / ("it.npy" if images is not None else "it.npz")
        if images is not None:
            np.save(path, images)
        else:
            np.savez(path, **arrays)
        return str(path)

    return save


def whole(data):
    return torch.cat([data.parts[part].images for part in ("train", "valid")])


def test_a_tenth_is_held_out_and_nothing_is_lost(saved):
    images = random_images(30, 4, 5, 3)
    name = saved(images)
    assert kind_of(name) == "images"
    found = open_images(name)
    assert (found.shape, found.levels, found.labels, found.source) == ((4, 5, 3), 256, None, name)
    assert {part: len(found.parts[part].images) for part in found.parts} == {"train": 27, "valid": 3}
    assert "3 of 30 held out" in found.about
    assert sorted(whole(found).tolist()) == sorted(images.tolist())
    assert open_images(name).parts["valid"].images.equal(found.parts["valid"].images)


def test_grey_images_have_one_channel(saved):
    images = random_images(4, 2, 3)
    assert sorted(whole(open_images(saved(images))).tolist()) == sorted(images[..., None].tolist())


def test_booleans_have_two_levels_and_floats_are_scaled(saved):
    bits = np.array([[[True, False]], [[False, True]]])
    found = open_images(saved(bits))
    assert found.levels == 2
    assert sorted(whole(found).flatten(1).tolist()) == [[0, 1], [1, 0]]
    found = open_images(saved(np.array([[[0.0, 0.5, 1.0]]] * 2, dtype=np.float32)))
    assert whole(found).flatten(1).tolist() == [[0, 128, 255]] * 2
    assert "floats times 255" in found.about


def test_values_below_the_levels_are_levels_already(saved):
    images = np.arange(32).reshape(2, 4, 4) % 16
    found = open_images(saved(images), ImageOptions(levels=16))
    assert (found.levels, int(whole(found).max())) == (16, 15)
    assert "values taken as 16 levels" in found.about
    images[0, 0, 0] = 255
    found = open_images(saved(images), ImageOptions(levels=16))
    assert sorted(whole(found).unique().tolist()) == [0, 15]  # of 256 levels: floor(v * 16 / 256)
    assert open_images(saved(images)).levels == 256


@pytest.mark.parametrize(("x", "y"), [("x_{}", "y_{}"), ("{}_images", "{}_labels")])
def test_parts_are_read_by_their_keys(saved, x, y):
    train, test = random_images(20, 2, 2), random_images(3, 2, 2, seed=1)
    arrays = {
        x.format("train"): train,
        y.format("train"): np.arange(20)[:, None] % 5,
        x.format("test"): test,
        y.format("test"): np.arange(3),
    }
    found = open_images(saved(**arrays))
    assert list(found.parts) == ["train", "valid", "test"]
    assert found.parts["test"].images.tolist() == test[..., None].tolist()
    assert found.parts["test"].labels.tolist() == [0, 1, 2]
    assert found.labels == tuple("01234")
    assert len(found.parts["valid"].labels) == 2
    arrays[x.format("val")] = test[:1]
    found = open_images(saved(**arrays))
    assert {part: len(found.parts[part].images) for part in found.parts} == {"train": 20, "valid": 1, "test": 3}
    assert found.parts["valid"].labels is None


def test_strings_are_class_names(saved):
    images = np.arange(20, dtype=np.uint8)[:, None, None]
    found = open_images(saved(images=None, x=images, y=np.array(["cat", "ant"] * 10)))
    assert found.labels == ("ant", "cat")
    for part in ("train", "valid"):
        assert found.parts[part].labels.tolist() == [1 - image % 2 for image in found.parts[part].images.flatten().tolist()]


def test_conversions_are_applied_and_stated(saved):
    pytest.importorskip("PIL")
    images = random_images(5, 6, 6, 3)
    name = saved(images)
    found = open_images(name, ImageOptions(grey=True, levels=8), (3, 3))
    assert (found.shape, found.levels) == ((3, 3, 1), 8)
    assert whole(found).shape == (5, 3, 3, 1)
    assert int(whole(found).max()) < 8
    for said in ("3 x 3", "ITU-R 601", "floor(v * 8 / 256)"):
        assert said in found.about
    prints = [open_images(name, options).fingerprint for options in (ImageOptions(), ImageOptions(grey=True), ImageOptions(levels=8))]
    assert len({*prints, found.fingerprint}) == 4
    assert open_images(name, ImageOptions(flips=True)).fingerprint == prints[0]


def test_values_out_of_range_are_named(saved):
    pixels = np.full((3, 2, 2), 0.5)
    for value, shown in ((np.nan, "nan"), (np.inf, "inf"), (1.5, "1.5"), (-0.25, "-0.25")):
        pixels[1, 1, 1] = value
        fix = "0 to 1 (divide" if np.isfinite(value) else "0 to 1."  # no division repairs NaN
        with refused("it.npy", f"the value {shown}", fix):
            open_images(saved(pixels))
    for value in (-1, 256):
        with refused("it.npy", f"the value {value}", "0 to 255"):
            open_images(saved(np.full((3, 2, 2), value)))


def test_objects_are_never_loaded(saved, tmp_path):
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.zeros((2, 2)), np.zeros((3, 3))]
    for name in (saved(ragged), saved(images=None, x=ragged)):
        with refused(name, "Python objects"):
            open_images(name)


def test_broken_files_are_refused(saved, tmp_path):
    for name in (saved(random_images(4, 2, 2)), saved(x=random_images(4, 2, 2))):
        for content in (b"", b"no array", (tmp_path / name).read_bytes()[:-7]):
            (tmp_path / name).write_bytes(content)
            with refused(name, "NumPy file"):
                open_images(name)


def test_wrong_shapes_types_keys_and_labels_are_refused(saved):
    images = random_images(4, 2, 2)
    for wrong in (images[0], random_images(4, 2, 2, 5), random_images(4, 3, 8, 8)):
        with refused(str(wrong.shape), "(n, height, width, channels)"):
            open_images(saved(wrong))
    with refused("complex128"):
        open_images(saved(images.astype(complex)))
    with refused("empty"):
        open_images(saved(images[:0]))
    with refused("only 1 image"):
        open_images(saved(images[:1]))
    with refused("'x', 'pixels'", "x_train"):
        open_images(saved(x=images, pixels=images))
    with refused("labels", "4 images"):
        open_images(saved(x=images, y=np.arange(3)))
    with refused("label -1"):
        open_images(saved(x=images, y=np.array([0, 1, -1, 0])))
    with refused("different shapes"):
        open_images(saved(x_train=images, x_test=images[:, :1]))
    with refused("'c'", "test part only"):
        open_images(saved(x_train=images, y_train=np.array(list("abab")), x_test=images[:1], y_test=np.array(["c"])))
    with refused("grey=true", "3 channels"):
        open_images(saved(random_images(4, 2, 2, 4)), ImageOptions(grey=True))


def test_levels_and_sizes_out_of_range_are_refused(saved):
    for levels in (1, 0, -5, 257):
        with refused(f"levels={levels}", "2 to 256"):
            ImageOptions(levels=levels)
    with refused("0 x 4"):
        open_images(saved(random_images(4, 2, 2)), size=(0, 4))
