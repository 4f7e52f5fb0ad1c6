"""The generation order of an image against loops over blocks and pixels; permuting images and back."""

from __future__ import annotations

import itertools

import torch

from formers.core import Raster
from helpers import refused, sweep

SIZES = [(1, 1), (1, 5), (6, 1), (4, 6), (5, 7)]
RASTERS = [
    Raster(height=height, width=width, channels=channels, block=block)
    for height, width in SIZES
    for channels in (1, 3)
    for block in (None, *itertools.product(range(1, height + 1), range(1, width + 1)))
]


def by_loops(raster: Raster) -> list[tuple[int, int, int]]:
    """Row, column and channel of every cell: over blocks, rows and columns of a block, and channels."""
    h, w = raster.block or (raster.height, raster.width)
    found = []
    for top, left in itertools.product(range(0, raster.height, h), range(0, raster.width, w)):
        for y, x in itertools.product(range(top, min(top + h, raster.height)), range(left, min(left + w, raster.width))):
            found += [(y, x, c) for c in range(raster.channels)]
    return found


@sweep("raster", RASTERS)
def test_the_order_is_block_after_block(raster: Raster) -> None:
    wanted = by_loops(raster)
    assert raster.cells == len(wanted) == raster.pixels * raster.channels
    assert [tuple(raster.cell(t)) for t in range(raster.cells)] == wanted
    at_once = raster.cell(torch.arange(raster.cells))
    assert torch.stack([torch.as_tensor(each) for each in at_once], dim=1).tolist() == [list(cell) for cell in wanted]
    assert raster.order().tolist() == [(y * raster.width + x) * raster.channels + c for y, x, c in wanted]


@sweep("raster", RASTERS)
def test_images_there_and_back(raster: Raster) -> None:
    images = torch.randint(256, (2, raster.height, raster.width, raster.channels))
    stream = raster.to_stream(images)
    assert stream[1].tolist() == [int(images[1, y, x, c]) for y, x, c in by_loops(raster)]
    assert torch.equal(raster.to_images(stream), images)


@sweep("raster", [each for each in RASTERS if each.channels == 1])
def test_whole_pixels_there_and_back(raster: Raster) -> None:
    images = torch.randint(256, (2, raster.height, raster.width, 4))
    stream = raster.to_pixels(images)
    assert stream[1].tolist() == [images[1, y, x].tolist() for y, x, _ in by_loops(raster)]
    assert torch.equal(raster.to_images(stream), images)


def test_mistakes() -> None:
    with refused("a block of 3 x 2", "image of 2 x 5", "inside the image"):
        Raster(height=2, width=5, block=(3, 2))
    with refused("block"):
        Raster(height=2, width=5, block=(0, 2))
    cells, pixels = Raster(height=2, width=3, channels=3), Raster(height=2, width=3)
    for shape in ((2, 3, 3), (1, 3, 2, 3), (1, 2, 3, 1)):
        with refused(str(shape), "(batch, 2, 3, 3)"):
            cells.to_stream(torch.zeros(shape))
    with refused("channels=1"):
        cells.to_pixels(torch.zeros(1, 2, 3, 3))
    for shape in ((1, 3, 2, 3), (2, 3), (2, 3, 3)):
        with refused(str(shape), "(batch, 2, 3, channels)"):
            pixels.to_pixels(torch.zeros(shape))
    for raster, shape in ((cells, (1, 17)), (cells, (1, 19)), (cells, (1, 18, 3)), (pixels, (1, 7, 3)), (pixels, (6,))):
        with refused(str(shape), "(batch, "):
            raster.to_images(torch.zeros(shape))
