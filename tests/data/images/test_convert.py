"""Conversions equal their formulas, and Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from formers.data.images.convert import resized, to_grey, to_levels


def test_grey_is_the_luma_of_itu_r_601():
    Image = pytest.importorskip("PIL.Image")
    images = torch.randint(256, (3, 20, 20, 3), dtype=torch.uint8)
    grey = to_grey(images)
    for image, found in zip(images, grey, strict=True):
        assert np.array_equal(np.asarray(Image.fromarray(image.numpy()).convert("L")), found[..., 0].numpy())
    wanted = images.double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert (grey[..., 0].double() - wanted).abs().max() <= 0.51


def test_levels_are_of_equal_width():
    values = torch.arange(256, dtype=torch.uint8)
    assert to_levels(values, 256, 16).bincount().tolist() == [16] * 16
    assert to_levels(torch.arange(17, dtype=torch.uint8), 17, 4).tolist() == [v * 4 // 17 for v in range(17)]


def test_resizing_crops_the_centre():
    pytest.importorskip("PIL")
    image = torch.zeros(1, 4, 8, 1, dtype=torch.uint8)
    image[:, :, 2:6] = 200
    assert resized(image, (4, 4)).unique().tolist() == [200]  # the square in the middle
    assert resized(image, (4, 8)).equal(image)
    assert resized(image.expand(-1, -1, -1, 3), (2, 2)).shape == (1, 2, 2, 3)
