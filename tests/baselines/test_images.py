"""Baselines of images equal naive loops, and files hold the images without loss."""

from __future__ import annotations

import io
import math
import os
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from formers.baselines.images import ALPHAS, context_bits, image_baselines, marginal_bits, png_bits, webp_bits
from formers.data.images import ImageSet, evaluated, open_images
from helpers import refused


def images(n, height, width, channels, levels, seed=0):
    """Images whose neighbours are alike."""
    random = np.random.default_rng(seed)
    steps = random.integers(-1, 2, (n, height, width, channels)).cumsum(1).cumsum(2)
    return torch.from_numpy(np.abs(steps % (2 * levels - 2) - (levels - 1)).astype(np.uint8))


def naive_marginal(train, held, levels, alpha):
    bits = []
    for place in np.ndindex(*train.shape[1:]):
        counts = Counter(int(image[place]) for image in train)
        bits += [-math.log2((counts[int(image[place])] + alpha) / (len(train) + alpha * levels)) for image in held]
    return sum(bits) / len(bits)


def naive_context(train, held, levels):
    steps = min(32, levels)

    def contexts(image):
        for y, x, c in np.ndindex(*image.shape):
            left = int(image[y, x - 1, c]) * steps // levels if x else None
            upper = int(image[y - 1, x, c]) * steps // levels if y else None
            yield int(image[y, x, c]), [(), (left,), (left, upper)]

    after = defaultdict(Counter)
    for image in train:
        for value, all_contexts in contexts(image):
            for context in all_contexts:
                after[context][value] += 1
    bits = []
    for image in held:
        for value, all_contexts in contexts(image):
            p = 1 / levels
            for context in all_contexts:
                seen = after.get(context)
                if seen:
                    p = (seen[value] + len(seen) * p) / (sum(seen.values()) + len(seen))
            bits.append(-math.log2(p))
    return sum(bits) / len(bits)


@pytest.mark.parametrize(("levels", "channels"), [(2, 1), (17, 1), (256, 3)])
def test_tables_equal_naive_loops(levels, channels):
    train, held = images(30, 4, 3, channels, levels), images(8, 4, 3, channels, levels, seed=1)
    found = marginal_bits(train, held, levels)
    assert min(abs(found - naive_marginal(train, held, levels, alpha)) for alpha in ALPHAS) < 1e-10
    assert context_bits(train, held, levels) == pytest.approx(naive_context(train, held, levels), abs=1e-10)


def test_the_smoothing_fits_the_training_images():
    same = torch.full((50, 2, 2, 1), 3, dtype=torch.uint8)
    assert marginal_bits(same, same, 256) == pytest.approx(naive_marginal(same, same, 256, min(ALPHAS)))
    noise = torch.randint(256, (20, 8, 8, 1), dtype=torch.uint8)
    assert marginal_bits(noise, noise, 256) == pytest.approx(naive_marginal(noise, noise, 256, max(ALPHAS)))


def test_unseen_values_cost_a_finite_number_of_bits():
    train, held = torch.zeros(5, 3, 3, 1, dtype=torch.uint8), torch.full((2, 3, 3, 1), 255, dtype=torch.uint8)
    for found in (marginal_bits(train, held, 256), context_bits(train, held, 256)):
        assert 8 < found < 40


def test_context_helps_where_neighbours_are_alike():
    train, held = images(300, 8, 8, 1, 17), images(50, 8, 8, 1, 17, seed=1)
    assert context_bits(train, held, 17) < marginal_bits(train, held, 17) - 0.5


@pytest.mark.parametrize(("form", "bits"), [("PNG", png_bits), ("WEBP", webp_bits)])
@pytest.mark.parametrize(("levels", "channels"), [(2, 1), (17, 1), (256, 1), (256, 3), (256, 4)])
def test_files_are_counted_and_lossless(monkeypatch, form, bits, levels, channels):
    Image = pytest.importorskip("PIL.Image")
    held = images(3, 9, 10, channels, levels)
    files, save = [], Image.Image.save

    def keep(self, file, *args, **options):
        save(self, file, *args, **options)
        files.append(file.getvalue())

    monkeypatch.setattr(Image.Image, "save", keep)
    assert bits(held, levels) == 8 * sum(map(len, files)) / held.numel()
    for image, file in zip(held.numpy(), files, strict=True):
        opened = Image.open(io.BytesIO(file))
        assert opened.format == form
        array = np.asarray(opened).reshape(9, 10, -1)[..., :channels]
        assert np.array_equal(array > 0 if levels == 2 else array, image)


def test_all_of_them(monkeypatch):
    pytest.importorskip("PIL")
    train, held = images(20, 4, 4, 1, 17), images(5, 4, 4, 1, 17, seed=1)
    found = image_baselines(ImageSet(train, None), held, 17)
    assert found == {
        "marginal_bits_per_dimension": marginal_bits(train, held, 17),
        "context_bits_per_dimension": context_bits(train, held, 17),
        "png_bits_per_dimension": png_bits(held, 17),
        "webp_bits_per_dimension": webp_bits(held, 17),
    }
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert list(image_baselines(train, held, 17)) == ["marginal_bits_per_dimension", "context_bits_per_dimension"]


def test_digits_have_the_known_baselines(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.delenv("FORMERS_DATA", raising=False)
    data = open_images("digits")
    train, held = data.parts["train"].images, data.parts["test"].images
    assert marginal_bits(train, held, 17) == pytest.approx(2.443, abs=1e-3)
    assert context_bits(train, held, 17) == pytest.approx(2.406, abs=1e-3)


@pytest.mark.skipif(not os.environ.get("FORMERS_DATA"), reason="FORMERS_DATA is not set")
def test_mnist_has_the_known_baselines(monkeypatch, tmp_path):
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path))
    for name, wanted, unit in (("mnist", (1.689, 1.327), 1.0), ("mnist-dynamic", (205.83, 136.78), 784 * math.log(2))):
        data = open_images(name)
        train, held = evaluated(data, "train").images, evaluated(data, "test").images
        found = [unit * bits(train, held, data.levels) for bits in (marginal_bits, context_bits)]
        assert found == pytest.approx(wanted, rel=5e-4)


def test_values_that_are_no_levels_are_refused():
    grey = torch.full((2, 3, 3, 1), 255, dtype=torch.uint8)
    for code in (lambda: marginal_bits(grey, grey, 2), lambda: context_bits(grey, grey, 2), lambda: png_bits(grey, 2)):
        with refused("255", "2 levels"):
            code()
    with refused("no image"):
        marginal_bits(grey, grey[:0], 256)
