"""FlexAttention off the CPU equals dense for every pattern, in values and gradients, by forcing its path on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from accelerator.forced import BLOCK, cpu_gradients, equals_dense, forced, inputs
from contracts.specimens import patterns
from formers.attention.executors import flex, flex_lengths
from formers.attention.executors.flex_kernel import LISTS, CompiledKernel
from formers.attention.executors.flex_lists import Band, block_lists
from formers.attention.request import Request
from formers.core import FormersError, Range
from formers.patterns import BigBird, Causal, Fixed, Full, Globals, Local, Pattern, PerHead, Strided
from helpers import sweep

CPU = torch.device("cpu")
SWEPT = sweep("pattern", patterns())
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5)


def asked(pattern: Pattern, n: int, valid: Tensor | None = None) -> Request:
    """A request for n tokens of two heads; a padded row ends where its mask does."""
    return Request(pattern.at(1) if valid is not None else pattern.at(1).of(n), Range(0, n), Range(0, n), 2, 0.3, valid)


@SWEPT
def test_every_length(pattern: Pattern) -> None:
    with forced():
        for n in LENGTHS:
            equals_dense(asked(pattern, n), inputs(2, n, value_dim=17))


@SWEPT
def test_padding_and_empty_rows(pattern: Pattern) -> None:
    """Also BigBird, whose sets depend on where each row ends."""
    with forced():
        for n in LENGTHS:
            mask = torch.rand(4, n) < 0.6
            mask[1], mask[2, : n // 2] = False, False
            found = equals_dense(asked(pattern, n, mask), inputs(2, n, batch=4))
            assert (found[1] == 0).all()


@SWEPT
def test_queries_that_are_not_the_keys(pattern: Pattern) -> None:
    with forced():
        for queries, keys in ((Range(10, 9), Range(0, 19)), (Range(19, 9), Range(13, 15)), (Range(0, 9), Range(0, 20))):
            try:
                bound = pattern.at(0).of(keys.stop)
            except FormersError:
                continue  # an image has no more pixels
            equals_dense(Request(bound, queries, keys, 2, 0.3), inputs(2, queries.length, keys.length))


@sweep("pattern", [Causal(), Full(), Local(window=9), BigBird(block=4, window=1)])
def test_rows_with_several_episodes(pattern: Pattern) -> None:
    n = 2 * BLOCK + 3
    first = torch.tensor([[0] * 5 + [5] * (n - 5), [0] * 11 + [11] * (n - 11)])
    with forced():
        equals_dense(asked(pattern, n)._replace(first=first), inputs(2, n))


UNCOMPILED: list[Pattern] = [
    Local(window=9),
    Strided(stride=5),
    BigBird(block=4, window=1),
    PerHead(Local(window=3, include_self=False), Fixed(stride=6, summary=1)),
    Globals(tokens=3) | BigBird(block=3, window=1),
]


@sweep("pattern", UNCOMPILED)
def test_torchs_own_flex_attention(pattern: Pattern) -> None:
    """Its graph, not compiled into a kernel: torch traces the mask functions, and follows its own rules for the backward pass."""
    n = 2 * BLOCK + 3
    mask = torch.arange(n) < torch.tensor([[n], [7], [BLOCK]])
    with forced(CompiledKernel("eager")), cpu_gradients():
        equals_dense(asked(pattern, n), inputs(2, n, batch=3))
        equals_dense(asked(pattern, n, mask), inputs(2, n, batch=3))


@SWEPT
@sweep("ragged", [False, True])
@sweep("band", [None, Band(11, 0), Band(5, 6)])
def test_block_lists_hold_every_pair_and_no_masked_pair_wholly(pattern: Pattern, ragged: bool, band: Band | None) -> None:
    where = Range(0, 5 * BLOCK)
    stop = where.stop - (3 if ragged else 0)
    bound = pattern.at(0)
    bound = bound.of(stop if bound.max_length is None else min(stop, bound.max_length))
    back = torch.arange(where.length)[:, None] - torch.arange(where.length)
    head = torch.arange(2)[:, None, None]
    pairs = torch.as_tensor(bound.allows(torch.arange(where.length)[:, None], torch.arange(where.length), head)).expand(2, -1, -1)
    pairs = pairs & (torch.arange(where.length) < stop)
    if band is not None:
        pairs = pairs & (back < band.reach) & (back >= -band.fore)
    tiles = pairs.view(2, 5, BLOCK, 5, BLOCK)
    some, every = tiles.any(dim=4).any(dim=2), tiles.all(dim=4).all(dim=2)
    lists = block_lists(bound, where, where, 2, CPU, BLOCK, band, ragged, False)
    part, whole = (marked(*lists[i : i + 2]) for i in (0, 2))
    assert not (part & whole).any()
    assert not (some & ~(part | whole)).any(), "a visible pair is in no listed block"
    assert not (whole & ~every).any(), "a masked pair is in a block that counts as wholly visible"
    assert torch.equal(marked(*lists[4:6]).mT, part)
    assert torch.equal(marked(*lists[6:8]).mT, whole)
    if not any(isinstance(each, BigBird) for each in (bound, *getattr(bound, "patterns", ()), getattr(bound, "second", None))):
        assert torch.equal((part | whole).expand_as(some), some) or band is not None
    masked = block_lists(bound, where, where, 2, CPU, BLOCK, band, ragged, True)
    assert masked[2] is masked[3] is None
    assert torch.equal(marked(*masked[:2]), part | whole)


def marked(count: Tensor, which: Tensor) -> Tensor:
    """Listed blocks as a table (heads, rows, columns) of marks."""
    first = torch.arange(which.shape[-1]) < count[..., None]
    return torch.zeros_like(which, dtype=torch.bool).scatter(-1, which.long(), first)[0]


def test_lists_are_computed_once_for_all_lengths_of_the_same_blocks() -> None:
    with forced():
        one, other, longer = (flex.block_mask(asked(Strided(stride=3), n), CPU) for n in (17, 19, 25))
        assert one.kv_indices is other.kv_indices
        assert one.kv_indices is not longer.kv_indices
        segment = flex.block_mask(Request(Strided(stride=3), Range(80, 17), Range(80, 17), 2, 1.0), CPU)
        assert segment.kv_indices is one.kv_indices, "segments of a long text share their lists"


@sweep("pattern", [BigBird(block=4, window=1), BigBird(block=4, window=1) | BigBird(block=3, window=1, global_blocks=1)])
@sweep("largest", [flex_lengths.LARGEST, 0])
def test_rows_of_different_lengths(pattern: Pattern, largest: int) -> None:
    """With tables of all lengths, and where these would be too large, or their blocks differ, with tables of the rows."""
    n = 3 * BLOCK + 2
    mask = torch.arange(n) < torch.tensor([[n], [9], [0], [1], [2 * BLOCK]])
    with forced(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_lengths, "LARGEST", largest)
        equals_dense(asked(pattern, n, mask), inputs(2, n, batch=5))


def test_an_unknown_pattern_that_depends_on_the_length_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(2, BLOCK)
    request = Request(BigBird(block=2), Range(0, BLOCK), Range(0, BLOCK), 2, 0.3, torch.ones(2, BLOCK, dtype=torch.bool))
    with forced():
        assert flex.unsupported(request, q, k, v) is None
        monkeypatch.setattr(flex_lengths, "BigBird", Local)  # the pattern is not one with tables
        assert "rows have different lengths" in str(flex.unsupported(request, q, k, v))
        assert flex.unsupported(request._replace(valid=None), q, k, v) is None


@pytest.mark.parametrize("heads", [2, 4])
def test_rows_of_different_lengths_need_no_wait(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists and tables of rows of different lengths have a batch dimension, and their values are not read."""
    n = 4 * BLOCK
    mask = torch.arange(n) < torch.tensor([[n], [9], [0]])

    def read(*_: object) -> None:
        raise AssertionError("a value is read")

    with forced():
        request = Request(BigBird(block=4, window=1), Range(0, n), Range(0, n), heads, 0.3, mask)
        assert request.uneven
        for name in ("item", "tolist", "__bool__", "__int__"):
            monkeypatch.setattr(Tensor, name, read)
        found = flex.block_mask(request, CPU)
    assert found.kv_indices.shape == (3, heads, 4, 4)


def test_lists_of_blocks_are_contiguous() -> None:
    """Kernels read them by their shapes."""
    with forced():
        n = 5 * BLOCK + 3
        for pattern in (Local(window=3), BigBird(block=4, window=1).of(n)):
            mask = flex.block_mask(Request(pattern, Range(0, n), Range(0, n), 2, 0.3), torch.device("cpu"))
            lists = [getattr(mask, name) for name in LISTS]
            assert all(x.is_contiguous() for x in lists if x is not None)
