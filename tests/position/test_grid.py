"""Grid positions: the vectors of a token, and the end of the grid."""

from __future__ import annotations

import torch

import formers
from formers.core import ExplicitPositions, Range, Sizes
from formers.position import Grid
from helpers import close, refused

SIZES = Sizes(dim=8, heads=1, head_dim=8, value_dim=8, length=24, depth_steps=1, dropout=0.0, attention_dropout=0.0, spread=0.5)


def test_a_token_is_given_the_vectors_of_its_row_column_and_channel():
    grid = Grid(height=2, width=4, channels=3).build(SIZES).double()
    found = grid(torch.zeros(1, 24, 8, dtype=torch.float64), Range(0, 24), 0)[0]
    for i, (row, column, channel) in enumerate(torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(3)).tolist()):
        close(found[i], grid.row[row] + grid.column[column] + grid.channel[channel])


def test_a_text_lies_in_rows_the_last_of_which_may_be_short():
    grid = Grid(width=10).build(SIZES)
    assert grid.row.shape == (3, 8)
    assert grid.column.shape == (10, 8)
    assert grid.channel is None
    x = torch.randn(2, 5, 8)
    close(grid(x, Range(8, 5), 0), x + torch.stack([grid.row[i // 10] + grid.column[i % 10] for i in range(8, 13)]))


def test_places_one_by_one_are_as_a_range_and_empty_ones_do_no_harm():
    grid, x = Grid(width=7, channels=2).build(SIZES), torch.randn(2, 4, 8)
    where = ExplicitPositions(torch.tensor([[3, 4, 5, 6], [20, 21, -1, -1]]), 22)
    found = grid(x, where, 0)
    close(found[0], grid(x[:1], Range(3, 4), 0)[0])
    close(found[1, :2], grid(x[1:, :2], Range(20, 2), 0)[0])


def test_all_vectors_together_are_of_the_size_of_a_token():
    torch.manual_seed(0)
    sizes = Sizes(**{**SIZES.__dict__, "dim": 512, "length": 4096})
    for grid in (Grid(width=64), Grid(width=64, height=16, channels=4)):
        added = grid.build(sizes)(torch.zeros(1, 4096, 512), Range(0, 4096), 0)
        assert abs(added.std().item() / 0.5 - 1) < 0.1


def test_beyond_the_grid_is_refused():
    model = formers.create("sparse-transformer", vocab=5, dim=8, heads=2, layers=1, length=20, stride=8)
    with refused("21 tokens", "length=20"):
        model(torch.zeros(1, 21, dtype=torch.long))
    with refused("12 positions", "length=20"):
        formers.create("sparse-transformer", vocab=5, dim=8, heads=2, layers=1, length=20, height=3, width=4)
