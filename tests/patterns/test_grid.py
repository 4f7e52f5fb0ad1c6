"""Blocks of queries in one and two dimensions against double loops over pixels, and the generation order."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from formers.core import Range
from formers.patterns import Blocks, Causal, LocalGrid
from helpers import refused, sweep

GRIDS = [
    LocalGrid(height=height, width=width, query=query, memory=memory)
    for height, width in ((4, 6), (5, 7), (1, 5), (6, 1))
    for query in ((1, 1), (2, 3), (1, 4), (3, 2), (9, 9))
    for memory in ((0, 0), (2, 1), (1, 0), (0, 2), (9, 9))
]


def made_before(grid: LocalGrid) -> list[tuple[int, int]]:
    """The pixels block after block, row after row inside each, by four loops."""
    (h, w), found = grid.query, []
    for top, left in itertools.product(range(0, grid.height, h), range(0, grid.width, w)):
        for y, x in itertools.product(range(top, min(top + h, grid.height)), range(left, min(left + w, grid.width))):
            found.append((y, x))
    return found


def by_pixels(grid: LocalGrid) -> Tensor:
    """The mask by loops: a rectangle around the query's block, of which those pixels are open that were made before it or with it."""
    (h, w), (a, c) = grid.query, grid.memory
    steps = {pixel: step for step, pixel in enumerate(made_before(grid))}
    mask = torch.zeros(len(steps), len(steps), dtype=torch.bool)
    for (y, x), step in steps.items():
        top, left = y - y % h, x - x % w
        for v, u in itertools.product(range(top - a, top + h), range(left - c, left + w + c)):
            if (v, u) in steps and steps[v, u] <= step:
                mask[y * grid.width + x, v * grid.width + u] = True
    return mask


@sweep("query", [1, 2, 5])
@sweep("memory", [0, 1, 4, 7])
def test_blocks_are_the_own_block_and_what_stands_before_it(query: int, memory: int) -> None:
    for n in range(1, 3 * query + 1):
        wanted = [[i - i % query - memory <= j <= i for j in range(n)] for i in range(n)]
        assert Blocks(query=query, memory=memory).mask(n)[0].tolist() == wanted


def test_a_memory_as_long_as_the_row_is_causal() -> None:
    assert torch.equal(Blocks(query=4, memory=17).mask(17), Causal().mask(17))


@sweep("pattern", [Blocks(query=4, memory=3), Blocks(query=3, memory=0)])
def test_blocks_keep_and_cover_exactly(pattern: Blocks) -> None:
    seen = pattern.mask(40)[0]
    for t in range(20):
        assert pattern.cached(t).tensor().tolist() == seen[t:, :t].any(dim=0).nonzero().flatten().tolist()
    for a, n, b, m in itertools.product(range(7), (1, 3), range(7), (1, 3)):
        assert pattern.covers(Range(a, n), Range(b, m)) == bool(seen[a : a + n, b : b + m].all())


@sweep("grid", GRIDS)
def test_a_grid_is_what_was_made_before_in_the_rectangle_around_the_block(grid: LocalGrid) -> None:
    pixels = grid.height * grid.width
    wanted = by_pixels(grid)
    for n in range(1, pixels + 1):
        assert torch.equal(grid.mask(n)[0], wanted[:n, :n])


@sweep("grid", GRIDS)
def test_nobody_sees_a_pixel_that_is_made_later(grid: LocalGrid) -> None:
    pixels = grid.height * grid.width
    order = grid.order()
    assert order.tolist() == [y * grid.width + x for y, x in made_before(grid)]
    mask = grid.mask(pixels)[0]
    assert not mask[order][:, order].triu(1).any()
    assert mask.diagonal().all()
    assert grid.is_causal == (not mask.triu(1).any()), "is_causal is about the row-major order of positions"


@sweep("grid", GRIDS)
def test_what_is_forgotten_is_never_seen(grid: LocalGrid) -> None:
    pixels = grid.height * grid.width
    mask = grid.mask(pixels)[0]
    for t in range(pixels):
        assert not mask[t:, : grid.oldest(t)].any()
        assert t - grid.oldest(t) <= grid.reach


def test_a_block_as_large_as_the_image_is_causal() -> None:
    grid = LocalGrid(height=3, width=5, query=(3, 5), memory=(0, 0))
    assert torch.equal(grid.mask(15), Causal().mask(15))


def test_behind_the_last_pixel_nobody_stands() -> None:
    grid = LocalGrid(height=2, width=3, query=(1, 2), memory=(4, 4))
    for i, j in ((6, 5), (5, 6), (6, 6), (-1, 0), (3, -1)):
        assert not grid.allows(i, j)
    for ask in (grid.mask, grid.of, (grid | Causal()).of):
        with refused("7 positions", "height=2", "width=3", "at most 6"):
            ask(7)


def test_bad_values_are_one_sentence() -> None:
    with refused("query=0"):
        Blocks(query=0, memory=1)
    with refused("memory=-1"):
        Blocks(query=2, memory=-1)
    good = {"height": 4, "width": 4, "query": (2, 2), "memory": (1, 1)}
    for name, value in (
        ("height", 0),
        ("width", -3),
        ("query", (0, 2)),
        ("query", (2,)),
        ("query", 3),
        ("memory", (1, -1)),
        ("memory", "x"),
    ):
        with refused("LocalGrid", name):
            LocalGrid(**{**good, name: value})
    with refused("query='2,2'", "a list of values, as in [2, 4]"):
        LocalGrid(**{**good, "query": "2,2"})
