"""The nearest training image is the one that all distances say."""

from __future__ import annotations

import torch

from formers.inspect.draw.images import to_rgb
from formers.inspect.draw.nearest import nearest_picture
from formers.inspect.measure.nearest import nearest_images
from helpers import close, refused, sweep


@sweep("chunk", [1, 7, 100])
def test_the_nearest_is_found(chunk: int) -> None:
    samples, training = torch.randint(256, (5, 4, 3, 3)), torch.randint(256, (50, 4, 3, 3)).to(torch.uint8)
    found = nearest_images(samples, training, 256, chunk)
    distances = (samples[:, None].double() - training.double()).flatten(2).norm(dim=2) / 255
    close(found.distance, distances.amin(dim=1))
    assert torch.equal(found.place, distances.argmin(dim=1))


def test_a_copy_is_found_exactly() -> None:
    training = torch.randint(256, (3000, 32, 32, 3)).to(torch.uint8)
    training[2500] = training[17]
    found = nearest_images(training[[17, 2999]], training, 256)
    assert found.place.tolist() == [17, 2999]
    assert found.distance.tolist() == [0.0, 0.0]


def test_the_picture_has_samples_above_their_nearest() -> None:
    training = torch.randint(17, (6, 8, 8, 1))
    samples = training[[4, 1]]
    page = nearest_picture(samples, training, 17)
    left = page.shape[1] - 2 * 102 - 6
    above, below = page[6:102, left : left + 96], page[108:204, left : left + 96]
    assert (above == below).all()
    assert (above[::12, ::12] == to_rgb(samples, 17)[0]).all()


def test_sizes_must_agree() -> None:
    with refused("(2, 4, 4, 1)", "one size"):
        nearest_images(torch.zeros(2, 4, 4, 1, dtype=torch.int64), torch.zeros(2, 4, 5, 1, dtype=torch.int64), 2)
