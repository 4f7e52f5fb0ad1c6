"""Binary images: the probabilities are v / 255, and draws for evaluation do not depend on the batch."""

from __future__ import annotations

import torch

from formers.core.random import generator
from formers.data.files import Parts
from formers.data.images import ImageData, ImageSet, draw_binary, evaluated, fixed_binary
from formers.data.images.binary import threshold_binary

VALUES = torch.tensor([0, 51, 204, 255], dtype=torch.uint8).repeat(20_000, 1)[:, None, :, None]


def test_pixels_are_drawn_with_the_probability_of_their_value():
    for drawn in (draw_binary(VALUES, generator(0)), fixed_binary(VALUES, torch.arange(len(VALUES)), "valid")):
        assert drawn.shape == VALUES.shape
        assert drawn.dtype == torch.uint8
        share = drawn.double().mean((0, 1, 3)).tolist()
        assert share[0] == 0
        assert share[3] == 1
        assert abs(share[1] - 0.2) < 0.01  # 3.5 standard deviations
        assert abs(share[2] - 0.8) < 0.01


def test_training_draws_follow_the_generator():
    assert draw_binary(VALUES, generator(1)).equal(draw_binary(VALUES, generator(1)))
    assert not draw_binary(VALUES, generator(1)).equal(draw_binary(VALUES, generator(2)))


def test_evaluation_draws_depend_on_part_and_index_only():
    images = torch.full((6, 8, 8, 1), 128, dtype=torch.uint8)
    whole = fixed_binary(images, torch.arange(6), "valid")
    assert fixed_binary(images[3:5], torch.tensor([3, 4]), "valid").equal(whole[3:5])
    assert not fixed_binary(images, torch.arange(6), "test").equal(whole)
    assert len({tuple(image.flatten().tolist()) for image in whole}) == 6
    data = ImageData(Parts({"valid": ImageSet(images, None)}), (8, 8, 1), 2, None, "", "", "", "dynamic")
    assert evaluated(data, "valid").images.equal(whole)
    assert evaluated(data._replace(binary="static"), "valid").images is images


def test_the_threshold_is_at_128():
    assert threshold_binary(torch.tensor([0, 127, 128, 255], dtype=torch.uint8)).tolist() == [0, 0, 1, 1]
