"""Image positions against the formula; in block order they are those of the image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import formers
from formers.core import ExplicitPositions, Range, Raster, Sizes
from formers.position import ImagePosition
from formers.training.optim import decayed
from helpers import close, refused, sweep

RASTERS = [
    Raster(height=3, width=4),
    Raster(height=2, width=3, channels=3),
    Raster(height=5, width=4, channels=2, block=(2, 3)),
    Raster(height=3, width=3, block=(2, 2)),
]


def module(raster: Raster, dim: int, form: str = "sinusoidal") -> torch.nn.Module:
    sizes = Sizes(
        dim=dim, heads=1, head_dim=dim, value_dim=dim, length=raster.cells, depth_steps=1, dropout=0.0, attention_dropout=0.0, spread=1.0
    )  # fmt: skip
    return ImagePosition(raster=raster, form=form).build(sizes).double()


def sines(i: int, width: int) -> list[float]:
    """[sin ..., cos ...] of a place, with time scales from 1 to 10,000."""
    scales = width // 2
    angles = [i / 10000.0 ** (k / max(scales - 1, 1)) for k in range(scales)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles] + [0.0] * (width % 2)


@sweep("raster", RASTERS)
@sweep("dim", [8, 16, 4, 10, 6, 7])
def test_sines_are_of_rows_and_then_of_columns_over_channels(raster: Raster, dim: int) -> None:
    x = torch.randn(2, raster.cells, dim, dtype=torch.float64)
    wanted = []
    for t in range(raster.cells):
        row, column, channel = raster.cell(t)
        wanted.append(sines(row, dim // 2) + sines(column * raster.channels + channel, dim - dim // 2))
    close(module(raster, dim)(x, Range(0, raster.cells), 0), x + torch.tensor(wanted, dtype=torch.float64), 1e-12)


def test_time_scales_end_at_ten_thousand() -> None:
    found = module(Raster(height=2, width=1), 16)(torch.zeros(1, 2, 16, dtype=torch.float64), Range(0, 2), 0)
    close(found[0, 1, :4].asin(), torch.tensor([1.0, 10 ** (-4 / 3), 10 ** (-8 / 3), 1e-4], dtype=torch.float64), 1e-12)


@sweep("raster", RASTERS)
@sweep("form", ["sinusoidal", "learned"])
def test_pieces_of_a_row_are_those_of_the_row(raster: Raster, form: str) -> None:
    part, n = module(raster, 8, form), raster.cells
    x = torch.randn(2, n, 8, dtype=torch.float64)
    whole = part(x, Range(0, n), 0)
    close(torch.cat([part(x[:, :5], Range(0, 5), 0), part(x[:, 5:], Range(5, n - 5), 0)], dim=1), whole, 0.0)
    index = torch.arange(n).flip(0).expand(2, n)
    close(part(x, ExplicitPositions(index, n), 0), x + (whole - x).flip(1), 1e-12)


@sweep("raster", RASTERS)
def test_learned_tables_are_read_by_row_and_by_column_and_channel(raster: Raster) -> None:
    part = module(raster, 6, "learned")
    tables: dict[str, Tensor] = dict(part.named_parameters())
    assert {name: tuple(table.shape) for name, table in tables.items()} == {
        "row": (raster.height, 3),
        "column": (raster.width * raster.channels, 3),
    }
    found = part(torch.zeros(1, raster.cells, 6, dtype=torch.float64), Range(0, raster.cells), 0)[0]
    for t in range(raster.cells):
        row, column, channel = raster.cell(t)
        close(found[t], torch.cat([tables["row"][row], tables["column"][column * raster.channels + channel]]), 0.0)


def test_the_order_does_not_change_the_vector_of_a_pixel() -> None:
    plain, blocks = Raster(height=5, width=4), Raster(height=5, width=4, block=(2, 3))
    zeros = torch.zeros(1, 20, 8, dtype=torch.float64)
    one, other = (raster.to_images(module(raster, 8)(zeros, Range(0, 20), 0)) for raster in (plain, blocks))
    close(one, other, 0.0)


def test_tables_do_not_decay() -> None:
    model = formers.create("image-transformer", height=2, width=2, levels=2, dim=8, heads=1, layers=1, position="learned")
    assert {"stack.position.row", "stack.position.column"} <= dict(model.named_parameters()).keys()
    assert not any("position" in name for name in decayed(model))


def test_a_row_longer_than_the_image_is_refused() -> None:
    with refused("13 positions", "3 x 4 x 1 = 12", "one image per row"):
        module(RASTERS[0], 8)(torch.zeros(1, 13, 8, dtype=torch.float64), Range(0, 13), 0)
