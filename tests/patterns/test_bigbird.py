"""BigBird: window and global blocks against a double loop; properties of the random blocks."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from formers.core import Range
from formers.patterns import Alternate, BigBird, Full, Local, Pattern, PerHead
from formers.patterns.plan import pairs
from helpers import refused, sweep

SIZES = [(block, window, g, r) for block in (1, 2, 4) for window in (1, 3) for g in (0, 1, 2, 3) for r in (0, 1, 3)]
PINNED = [[2, 3], [3, 4], [3, 4], [0, 2], [0, 2], [1, 2]]
SWEPT = sweep(("block", "window", "g", "r"), SIZES)


def sure(n: int, block: int, window: int, g: int) -> tuple[Tensor, list[bool]]:
    """The mask of window and global blocks by loops, and which positions are global."""
    blocks = math.ceil(n / block)
    chosen = {b for b in range(math.ceil(g / 2)) if b < blocks} | {blocks - 1 - b for b in range(g // 2) if b < blocks}
    everywhere = [i // block in chosen for i in range(n)]
    rows = [
        [everywhere[i] or everywhere[j] or i // block - window // 2 <= j // block <= i // block + window // 2 for j in range(n)]
        for i in range(n)
    ]
    return torch.tensor(rows), everywhere


@SWEPT
def test_every_length(block: int, window: int, g: int, r: int) -> None:
    pattern = BigBird(block=block, window=window, global_blocks=g, random_blocks=r, seed=5)
    for n in range(1, 6 * block + 2):
        wanted, everywhere = sure(n, block, window, g)
        mask = pattern.mask(n, heads=2, layer=1)
        drawn = mask & ~wanted
        assert (mask | ~wanted).all(), "window and global blocks are seen"
        blocks = math.ceil(n / block)
        for head, i in itertools.product(range(2), range(n)):
            row = mask[head, i]
            assert row.any()
            assert everywhere[i] <= bool(row.all()), "global rows see everything"
            keys = {j // block for j in drawn[head, i].nonzero().flatten().tolist()}
            sure_blocks = {j // block for j in wanted[i].nonzero().flatten().tolist()}
            assert len(keys) == min(r, blocks - len(sure_blocks)), "as many are drawn as there are to draw"
            assert all(row[c * block : (c + 1) * block].all() for c in keys), "whole blocks"
            if not everywhere[i]:
                assert row.sum() <= (g + window + r) * block
            assert torch.equal(row, mask[head, i // block * block]), "a block's queries see the same"


@SWEPT
def test_with_a_global_block_two_layers_reach_all(block: int, window: int, g: int, r: int) -> None:
    if g:
        one = BigBird(block=block, window=window, global_blocks=g, random_blocks=r).mask(5 * block + 1)[0].double()
        assert (one @ one > 0).all()


def test_random_blocks_are_keyed_by_seed_layer_head_and_blocks() -> None:
    def drawn(seed: int = 0, layer: int = 0, head: int = 0, n: int = 64) -> Tensor:
        torch.manual_seed(seed + layer + head)  # must not matter
        return BigBird(block=2, window=1, random_blocks=2, seed=seed).mask(n, head + 1, layer)[head]

    assert torch.equal(drawn(), drawn())
    different = [drawn(), drawn(seed=1), drawn(layer=1), drawn(head=1), drawn(n=66)[:64, :64]]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(different, 2))


def test_torchs_own_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    BigBird(block=2, seed=123456).mask(40, heads=3, layer=2)
    assert torch.equal(before, torch.random.get_rng_state())


def lowbias32(x: int) -> int:
    """The published hash (Wellons, 2018), on Python's integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def draws(free: list[int], r: int, key: int) -> set[int]:
    """Floyd's sample of r of the free blocks, as he wrote it: of a set, with the free ones in a list."""
    chosen: set[int] = set()
    for number in range(r):
        last = len(free) - r + number
        if last >= 0:
            place = lowbias32((key + number) % 2**32) * (last + 1) // 2**32
            chosen.add(last if place in chosen else place)
    return {free[place] for place in chosen}


@sweep(("window", "g", "r"), [(1, 0, 2), (3, 2, 3), (3, 3, 9), (5, 1, 1)])
def test_the_draw_is_the_same_on_every_machine(window: int, g: int, r: int) -> None:
    """Number by number: the key is folded of seed (two words), layer, head, blocks and block."""
    for seed, layer, head, blocks in ((7, 1, 1, 6), (-3, 0, 0, 9), (2**40 + 5, 11, 2, 13)):
        pattern = BigBird(block=1, window=window, global_blocks=g, random_blocks=r, seed=seed).at(layer).of(blocks)
        everywhere = {b for b in range(blocks) if b < math.ceil(g / 2) or b >= blocks - g // 2}
        for a in set(range(blocks)) - everywhere:
            free = [c for c in range(blocks) if c not in everywhere and abs(a - c) > window // 2]
            key = 0
            for part in (seed % 2**32, (seed // 2**32) % 2**32, layer, head, blocks, a):
                key = lowbias32((key + part) % 2**32)
            seen = {c for c in free if pattern.allows(a, c, head)}
            assert seen == draws(free, r, key)
    first = BigBird(block=1, window=1, global_blocks=0, random_blocks=2, seed=7).at(1).of(6)
    assert [[j for j in range(6) if j != i and first.allows(i, j, 1)] for i in range(6)] == PINNED


def test_every_set_is_as_likely() -> None:
    """Of ten pairs of five free blocks each is drawn about as often; chi-squared with 9 degrees of freedom is 28 once in 1,000."""
    heads, counts = 4000, dict.fromkeys(itertools.combinations(range(1, 6), 2), 0)
    mask = BigBird(block=1, window=1, global_blocks=0, random_blocks=2).mask(6, heads=heads)
    for row in mask[:, 0].tolist():
        counts[tuple(c for c in range(1, 6) if row[c])] += 1
    wanted = heads / len(counts)
    assert sum((count - wanted) ** 2 / wanted for count in counts.values()) < 28
    for other in range(1, 6):  # what block 0 draws tells nothing of what the others draw
        both = (mask[:, 0].roll(other, dims=1) & mask[:, other])[:, [c for c in range(6) if c not in (0, other)]].double().mean()
        assert 0.1 < both < 0.22, "0.16 by chance"


def test_random_blocks_are_drawn_from_the_whole_row() -> None:
    far = BigBird(block=1, window=1, global_blocks=0, random_blocks=2).mask(64, heads=16).any(dim=0)
    assert far.sum() > 20 * 64, "of 16 heads with two draws each few coincide"
    counts = far.sum(dim=0).double()
    assert counts.min() > 10


def test_the_row_counts_and_not_what_is_asked_of_it() -> None:
    """A row in a padded batch has the pattern of the row alone."""
    pattern = BigBird(block=2, window=1, global_blocks=2, random_blocks=1)
    alone = pattern.of(9)
    assert alone == pattern.of(10) != pattern.of(11)
    assert alone.of(30) == alone, "it stays"
    mask = alone.mask(14)[0]
    assert torch.equal(mask[:10, :10], pattern.mask(10)[0])
    assert not mask[10:].any()
    assert not mask[:, 10:].any()
    assert not alone.allows(0, -1)
    assert not alone.allows(-1, 0)


@sweep(
    "pattern",
    [
        BigBird(block=2, window=1, random_blocks=2),
        BigBird(block=3, random_blocks=0),
        BigBird(block=2, global_blocks=1, random_blocks=0),
        BigBird(block=2, window=1) | Local(window=2),
        BigBird(block=2, window=1) & Local(window=9, causal=False),
        PerHead(BigBird(block=2, window=1), Full()),
        Alternate(BigBird(block=2, window=1), Full()),
    ],
)
def test_rows_of_different_lengths_at_once(pattern: Pattern) -> None:
    lengths, here, heads = torch.arange(1, 22), torch.arange(21), torch.arange(2)[:, None, None]
    together = pattern.at(0).of(lengths[:, None, None, None]).allows(here[:, None], here, heads).expand(21, 2, 21, 21)
    for n, mask in zip(lengths.tolist(), together, strict=True):
        assert torch.equal(mask[:, :n, :n], pattern.mask(n, heads=2))
    assert pattern.of(5).by_length is False


def test_whether_it_depends_on_the_length() -> None:
    assert BigBird(block=2).by_length
    assert BigBird(block=2, global_blocks=1).by_length
    plain = BigBird(block=2, global_blocks=1, random_blocks=0)
    assert not plain.by_length
    assert plain.of(9) == plain
    assert plain.allows(10**6, 10**6)
    assert plain.covers(Range(40, 2), Range(42, 2))


def test_a_long_plan_holds_few_pairs() -> None:
    n = 4096 + 7
    pattern = BigBird(block=64).at(2).of(n)
    plan = pattern.pieces(n, 1)
    assert plan[0] is pattern.pieces(n, 1)[0], "plans are kept"
    assert pairs(plan) <= 65 * 64 * 8 * 64 + 2 * 64 * 65 * 64, "eight blocks a block, and two that see all"
    assert len(plan[0].pieces) <= 6, "blocks that see as many through the same mask are together"


def test_without_a_row_it_is_refused() -> None:
    with refused("of(n)"):
        BigBird(block=2).allows(0, 0)
    with refused("of(n)"):
        (BigBird(block=2) | Local(window=2)).allows(0, 0)
    assert (BigBird(block=2) | Local(window=2)).of(5).allows(0, 0)


def test_layers_and_heads_are_alike_without_random_blocks() -> None:
    pattern = BigBird(block=2, random_blocks=0)
    assert pattern.at(3) == pattern
    assert not pattern.by_head
    drawing = BigBird(block=2, random_blocks=1)
    assert drawing.by_head
    assert drawing.at(3).at(5) == drawing.at(3) != drawing.at(5)
    assert torch.equal(drawing.at(3).mask(20), drawing.mask(20, layer=3))


def test_where_its_blocks_cover_everything_it_is_full_and_says_so() -> None:
    for n in range(1, 40):
        for pattern in (BigBird(block=2, window=99), BigBird(block=2, global_blocks=99), BigBird(block=2), BigBird(block=3, window=1)):
            open_ = torch.equal(pattern.mask(n, heads=2), Full().mask(n, heads=2))
            assert pattern.of(n).covers(Range(0, n), Range(0, n)) == open_


@sweep("pattern", [BigBird(block=2), BigBird(block=2, window=1, global_blocks=1, random_blocks=2)])
def test_covers_only_what_is_all_open(pattern: BigBird) -> None:
    n = 15
    mask = pattern.mask(n, heads=3).all(dim=0)
    for a, k, b, m in itertools.product(range(n), (1, 3, 8), range(n), (1, 3, 8)):
        if pattern.of(n).covers(Range(a, k), Range(b, m)):
            assert mask[a : a + k, b : b + m].all()
            assert max(a + k, b + m) <= 16
    assert pattern.of(n).covers(Range(0, 2), Range(0, n))
    assert not pattern.covers(Range(0, 1), Range(0, 1)), "without a row it does not know"


def test_a_head_alone_is_the_head_among_others() -> None:
    pattern, here = BigBird(block=2, window=1).of(30), torch.arange(30)
    together = pattern.mask(30, heads=4)
    for head in range(4):
        assert torch.equal(pattern.allows(here[:, None], here, head), together[head])
        assert torch.equal(pattern.allows(here[:, None], here, torch.tensor(head)), together[head])


def test_fake_tensors_give_shapes() -> None:
    with FakeTensorMode():
        assert BigBird(block=2, window=1).mask(30, heads=4).shape == (4, 30, 30)
    assert BigBird(block=2, window=1).mask(30, heads=4).any()


def test_bad_values_are_one_sentence() -> None:
    with refused("window=4", "give 3 or 5"):
        BigBird(block=2, window=4)
    for name, value in (("block", 0), ("window", 0), ("window", -1), ("global_blocks", -1), ("random_blocks", -1), ("seed", "x")):
        with refused("BigBird", f"{name}={value!r}"):
            BigBird(**{"block": 2, name: value})
