"""Two-dimensional local attention in generation order, against the published rule by loops over pixels."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from formers import attend
from formers.attention.attend import explain
from formers.patterns import Causal, LocalGrid, OrderedGrid
from formers.patterns.plan import GroupedPositions, Plan, SelectedPositions
from helpers import close, refused, sweep

PATTERNS = [
    OrderedGrid(grid=LocalGrid(height=height, width=width, query=query, memory=memory), channels=channels)
    for height, width in ((1, 1), (1, 5), (4, 1), (3, 4), (5, 4))
    for query in ((1, 1), (2, 2), (2, 3), (3, 1), (height, width))
    for memory in ((0, 0), (1, 0), (0, 1), (1, 2), (2, 1), (9, 9))
    for channels in (1, 2, 3)
]


def published(pattern: OrderedGrid) -> Tensor:
    """The mask of Parmar et al. by loops: cells in the order in which they are generated, and for each the rule of its block's memory."""
    grid, channels = pattern.grid, pattern.channels
    (h, w), (above, beside) = grid.query, grid.memory
    cells = []
    for top, left in itertools.product(range(0, grid.height, h), range(0, grid.width, w)):
        for y, x in itertools.product(range(top, min(top + h, grid.height)), range(left, min(left + w, grid.width))):
            cells += [(top, left, y, x)] * channels
    mask = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    for t, (top, left, _, _) in enumerate(cells):
        for s, (_, _, y, x) in enumerate(cells):
            own = top <= y < top + h and left <= x < left + w and s <= t
            over = top - above <= y < top and left - beside <= x < left + w + beside
            before = top <= y < top + h and left - beside <= x < left
            mask[t, s] = own or over or before
    return mask


@sweep("pattern", PATTERNS)
def test_the_mask_is_the_published_rule(pattern: OrderedGrid) -> None:
    wanted = published(pattern)
    assert pattern.max_length == len(wanted)
    assert torch.equal(pattern.mask(pattern.max_length)[0], wanted)
    assert not wanted.triu(1).any(), "the order generates what the rule shows later than the query"
    for n in {1, pattern.max_length // 2 or 1, max(1, pattern.max_length - 1)}:
        assert torch.equal(pattern.mask(n)[0], wanted[:n, :n])
    assert all(
        pattern.allows(i, j) == wanted[i, j] for i, j in itertools.product(range(0, pattern.max_length, 3), range(0, pattern.max_length, 2))
    )
    assert not pattern.allows(pattern.max_length, 0)
    assert not pattern.allows(0, -1)


def test_the_right_flange_is_open_above_only() -> None:
    """Pixel (2, 2) of a 4 x 6 image in blocks of 2 x 2, memory (1, 1): the picture of the rule, by hand."""
    pattern = OrderedGrid(grid=LocalGrid(height=4, width=6, query=(2, 2), memory=(1, 1)))
    places = {tuple(pattern.raster.cell(t))[:2]: t for t in range(24)}
    seen = pattern.mask(24)[0][places[2, 2]]
    assert {place for place, t in places.items() if seen[t]} == {(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (2, 2)}


def positions(where: GroupedPositions | SelectedPositions) -> list[list[int]]:
    """The positions of every group."""
    if isinstance(where, SelectedPositions):
        return [[int(block) * where.unit + i for block in blocks for i in range(where.unit)] for blocks in where.blocks]
    return [[where.start + where.step * g + where.stride * i for i in range(where.size)] for g in range(where.groups)]


def covered(plan: Plan, n: int) -> Tensor:
    """How many times each pair is computed by a plan."""
    count = torch.zeros(n, n, dtype=torch.int64)
    for part in plan:
        assert part.among is None
        for piece in part.pieces:
            for queries, keys in zip(positions(piece.queries), positions(piece.keys), strict=True):
                for row, q in enumerate(queries):
                    open_before = len(keys) - (0 if piece.mask is None else piece.mask.shape[1])
                    for column, k in enumerate(keys):
                        if column < open_before or (piece.mask is not None and piece.mask[row, column - open_before]):
                            count[q, k] += 1
    return count


@sweep("pattern", PATTERNS[::3])
def test_the_pieces_are_the_mask_each_pair_once(pattern: OrderedGrid) -> None:
    for n in {pattern.max_length, max(1, pattern.max_length - 1), (pattern.max_length + 1) // 2}:
        assert torch.equal(covered(pattern.pieces(n), n), pattern.mask(n)[0].long())


def test_the_pieces_of_blocks_with_more_cells_than_a_group() -> None:
    pattern = OrderedGrid(grid=LocalGrid(height=11, width=10, query=(9, 8), memory=(3, 1)), channels=2)
    assert torch.equal(covered(pattern.pieces(220), 220), published(pattern).long())


@sweep("pattern", PATTERNS)
def test_what_is_forgotten_is_never_seen_again(pattern: OrderedGrid) -> None:
    mask = published(pattern)
    first = [int(row.int().argmax()) for row in mask]
    oldest = [pattern.oldest(t) for t in range(pattern.max_length)]
    assert oldest == sorted(oldest)
    assert all(o <= min(first[t:]) for t, o in enumerate(oldest))
    assert pattern.reach >= max(t - s for t, s in enumerate(first))
    assert pattern.reach < pattern.max_length


def test_old_rows_are_forgotten() -> None:
    pattern = OrderedGrid(grid=LocalGrid(height=32, width=8, query=(4, 4), memory=(4, 2)))
    assert pattern.oldest(255) == 255 // 32 * 32 - 32
    assert pattern.reach == 63


def test_a_memory_over_the_image_is_causal() -> None:
    for query in ((1, 1), (2, 2), (4, 5)):
        pattern = OrderedGrid(grid=LocalGrid(height=4, width=5, query=query, memory=(4, 5)), channels=2)
        assert torch.equal(pattern.mask(40), Causal().mask(40))


def both(pattern: OrderedGrid, n: int, how: str) -> tuple[Tensor, ...]:
    """Output and gradients of random tensors."""
    torch.manual_seed(0)
    q, k = (torch.randn(2, 2, n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True)
    y = attend(q, k, v, pattern, how)
    return y, *torch.autograd.grad(y, (q, k, v), torch.randn_like(y))


def naive(pattern: OrderedGrid, n: int) -> tuple[Tensor, ...]:
    """The same by the whole matrix and the rule by loops."""
    torch.manual_seed(0)
    q, k = (torch.randn(2, 2, n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True)
    scores = (q @ k.mT) * 3**-0.5
    y = scores.masked_fill(~published(pattern)[:n, :n], -torch.inf).softmax(dim=-1) @ v
    return y, *torch.autograd.grad(y, (q, k, v), torch.randn_like(y))


@sweep("pattern", PATTERNS[1::11])
def test_every_small_size_equals_the_matrix(pattern: OrderedGrid) -> None:
    for n in {pattern.max_length, max(1, pattern.max_length - 1), (pattern.max_length + 1) // 2}:
        for how in ("blocked", "auto"):
            for found, wanted in zip(both(pattern, n, how), naive(pattern, n), strict=True):
                close(found, wanted)


@sweep(
    "pattern",
    [
        OrderedGrid(grid=LocalGrid(height=14, width=13, query=(4, 5), memory=(2, 3)), channels=3),
        OrderedGrid(grid=LocalGrid(height=24, width=23, query=(8, 8), memory=(4, 4))),
        OrderedGrid(grid=LocalGrid(height=9, width=30, query=(9, 3), memory=(2, 7)), channels=2),
    ],
)
def test_large_images_equal_the_matrix_with_the_executor_that_is_chosen(pattern: OrderedGrid) -> None:
    q = torch.zeros(2, 2, pattern.max_length, 3, dtype=torch.float64, requires_grad=True)
    assert pattern.max_length >= 512
    assert "blocked" in str(explain(q, q, q, pattern))
    wanted = naive(pattern, pattern.max_length)
    for how in ("auto", "blocked"):
        for found, right in zip(both(pattern, pattern.max_length, how), wanted, strict=True):
            close(found, right)


def test_a_longer_row_is_refused() -> None:
    pattern = OrderedGrid(grid=LocalGrid(height=2, width=3, query=(1, 1), memory=(1, 1)), channels=3)
    with refused("19 positions", "height=2, width=3, channels=3", "at most 18"):
        pattern.of(19)
    with refused("19 positions"):
        pattern.mask(19)
