"""Strided and fixed attention against the paper's sets, and which positions their parts connect."""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import Range
from formers.patterns import Alternate, Blocks, Causal, Column, Fixed, Local, Pattern, PerHead, Strided, Summary
from helpers import refused, sweep

STRIDES = range(1, 6)
FIXED = [(stride, summary) for stride in STRIDES for summary in range(1, stride + 1)]


def by_sets(sets: list[set[int]]) -> Tensor:
    """The mask of the sets S_0, S_1, ..., of which the keys before 0 do not exist."""
    return torch.tensor([[j in seen for j in range(len(sets))] for seen in sets])


def two_hops(first: Pattern, second: Pattern, n: int) -> Tensor:
    """Whether what stands at j reaches i through a layer of `first` and then one of `second`."""
    return second.mask(n)[0].double() @ first.mask(n)[0].double() > 0


@sweep("stride", STRIDES)
def test_strided_is_the_papers_union(stride: int) -> None:
    for n in range(1, 3 * stride + 1):
        local = [set(range(i - stride + 1, i + 1)) for i in range(n)]
        column = [{j for j in range(i + 1) if (i - j) % stride == 0} for i in range(n)]
        first, second = Strided(stride=stride).parts()
        assert torch.equal(first.mask(n)[0], by_sets(local))
        assert torch.equal(second.mask(n)[0], by_sets(column))
        assert torch.equal(Strided(stride=stride).mask(n)[0], by_sets([a | b for a, b in zip(local, column, strict=True)]))


@sweep(("stride", "summary"), FIXED)
def test_fixed_is_the_papers_union(stride: int, summary: int) -> None:
    for n in range(1, 3 * stride + 1):
        own = [{j for j in range(i + 1) if j // stride == i // stride} for i in range(n)]
        summaries = [{j for j in range(i + 1) if j % stride in range(stride - summary, stride)} for i in range(n)]
        pattern = Fixed(stride=stride, summary=summary)
        first, second = pattern.parts()
        assert torch.equal(first.mask(n)[0], by_sets(own))
        assert torch.equal(second.mask(n)[0], by_sets([s | {i} for i, s in enumerate(summaries)]))
        assert torch.equal(pattern.mask(n)[0], by_sets([a | b for a, b in zip(own, summaries, strict=True)]))


def test_a_stride_as_long_as_the_row_is_causal() -> None:
    for n in (1, 5, 8):
        for pattern in (Strided(stride=8), Strided(stride=1), Fixed(stride=8, summary=2), Fixed(stride=3, summary=3)):
            assert torch.equal(pattern.mask(n), Causal().mask(n))


@sweep("n", [1, 7, 16, 17])
def test_two_layers_connect_every_causal_pair(n: int) -> None:
    causal = Causal().mask(n)[0]
    first, second = Strided(stride=4).parts()
    assert torch.equal(two_hops(first, second, n), causal)
    assert torch.equal(two_hops(second, first, n), causal)
    for pattern in (Fixed(stride=4, summary=1), Fixed(stride=4, summary=2), Fixed(stride=4, summary=2, subblocks=2)):
        first, second = pattern.parts()
        assert torch.equal(two_hops(first, second, n), causal)


def test_fixed_the_other_way_round_does_not_connect() -> None:
    first, second = Fixed(stride=4, summary=1).parts()
    assert not torch.equal(two_hops(second, first, 16), Causal().mask(16)[0])


@sweep("pattern", [Strided(stride=4), Fixed(stride=4, summary=1), Fixed(stride=5, summary=2, subblocks=2)])
def test_no_part_leaves_a_query_without_itself(pattern: Strided | Fixed) -> None:
    for part in pattern.parts():
        assert part.mask(12, heads=3).diagonal(dim1=1, dim2=2).all()


def test_heads_have_sub_blocks_of_their_own() -> None:
    pattern = Fixed(stride=6, summary=2, subblocks=3)
    mask = pattern.mask(12, heads=5)
    seen = [mask[head, 11, :6].nonzero().flatten().tolist() for head in range(5)]
    assert seen == [[4, 5], [2, 3], [0, 1], [4, 5], [2, 3]]
    assert pattern.by_head
    assert not Fixed(stride=6, summary=2).by_head


@sweep(
    "pattern",
    [Fixed(stride=4, summary=1), Fixed(stride=5, summary=2, subblocks=2), Summary(stride=4, summary=1), Fixed(stride=1, summary=1)],
)
def test_summaries_and_the_open_block_are_all_that_is_kept(pattern: Pattern) -> None:
    """A decoder keeps a key exactly as long as anybody will see it."""
    n = 30
    seen = pattern.mask(4 * n, heads=2)[:, :, :n].any(dim=0)
    for t in range(n):
        assert pattern.cached(t).tensor().tolist() == seen[t:, :t].any(dim=0).nonzero().flatten().tolist()
        assert pattern.oldest(t) == int(seen[t:].any(dim=0).nonzero()[0])


def test_strided_keeps_all() -> None:
    assert Strided(stride=4).cached(1000) == Range(0, 1000)


def test_three_parts_can_be_written() -> None:
    parts = (Local(window=2), Column(stride=2) & Local(window=4), Column(stride=4))
    reached = torch.eye(16, dtype=torch.float64)
    for layer in range(3):
        reached = Alternate(*parts).mask(16, layer=layer)[0].double() @ reached
    assert torch.equal(reached > 0, Causal().mask(16)[0])
    assert PerHead(*parts).mask(16, heads=3).shape == (3, 16, 16)


def test_parts_of_fixed_are_blocks_and_summaries() -> None:
    assert Fixed(stride=4, summary=2).parts() == (Blocks(query=4, memory=0), Summary(stride=4, summary=2))


def test_bad_values_are_one_sentence() -> None:
    with refused("stride=0"):
        Strided(stride=0)
    for kind in (Fixed, Summary):
        with refused("stride=-1"):
            kind(stride=-1, summary=1)
        with refused("summary=0"):
            kind(stride=4, summary=0)
        with refused("summary=5", "stride=4", "at most 4"):
            kind(stride=4, summary=5)
        with refused("subblocks=3", "at most 2"):
            kind(stride=4, summary=2, subblocks=3)
    with refused("summary=5", "stride=4"):
        Fixed(stride=8, summary=5).replace(stride=4)
