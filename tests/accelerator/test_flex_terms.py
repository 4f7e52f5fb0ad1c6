"""Terms by distance inside FlexAttention equal dense: relative scores, spans and dynamic spans, with gradients of all factors."""

from __future__ import annotations

import torch
from torch import Tensor

from accelerator.forced import BLOCK, WIDTH, cpu_gradients, equals_dense, forced, inputs
from formers.attention.executors import flex, flex_terms
from formers.attention.executors.flex_kernel import CompiledKernel
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Causal, Full, Local, Pattern
from formers.score import ByDistance
from helpers import Largest, close, sweep

HEADS, BATCH = 3, 2
PLACES = [
    (Range(0, 2 * BLOCK), Range(0, 2 * BLOCK)),
    (Range(0, 2 * BLOCK + 3), Range(0, 2 * BLOCK + 3)),
    (Range(BLOCK + 2, BLOCK + 5), Range(0, 2 * BLOCK + 7)),
    (Range(50, BLOCK + 1), Range(41, 2 * BLOCK + 2)),
]
"""Queries and keys: the same tokens, and tokens with a memory before them."""


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def spans(*shape: int, reach: int) -> Tensor:
    """Levels with a ramp down to minus infinity, which differ by head or by query; the first of them mask everything."""
    ends = torch.arange(torch.Size(shape).numel()).view(*shape, 1) % (reach + 2)
    back = torch.arange(reach)
    level = torch.where(back < ends, -0.1 * back.double(), float("-inf"))
    return level.requires_grad_()


def relative(queries: Range, keys: Range, reach: int, ahead: bool = False) -> tuple[ByDistance, list[Tensor]]:
    q, table = leaf(BATCH, HEADS, queries.length, WIDTH), leaf(HEADS, reach, WIDTH)
    fore = leaf(HEADS, keys.stop - queries.start - 1, WIDTH) if ahead else None
    return ByDistance(q, table, None, queries, keys, ahead=fore), [q, table, *([] if fore is None else [fore])]


@sweep("place", PLACES)
@sweep("pattern", [Causal(), Local(window=9), Full()])
def test_relative_scores(place: tuple[Range, Range], pattern: Pattern) -> None:
    queries, keys = place
    for ahead in (False, True):
        term, more = relative(queries, keys, queries.stop - keys.start, ahead)
        with forced():
            request = Request(pattern, queries, keys, HEADS, 0.3, None, term)
            equals_dense(request, inputs(HEADS, queries.length, keys.length), more)


def test_relative_scores_with_padding_and_a_short_table() -> None:
    queries, keys = PLACES[1]
    term, more = relative(queries, keys, 7, True)
    mask = torch.rand(BATCH, keys.length) < 0.6
    mask[1] = False
    with forced():
        equals_dense(Request(Full(), queries, keys, HEADS, 0.3, mask, term), inputs(HEADS, queries.length), more)


@sweep("place", PLACES)
@sweep("shape", [(1, HEADS, 1), (BATCH, HEADS, -1)])
def test_spans(place: tuple[Range, Range], shape: tuple[int, ...]) -> None:
    """Levels of minus infinity mask pairs, and all pairs of some queries: these give 0, and gradients of 0."""
    queries, keys = place
    q, table = leaf(BATCH, HEADS, queries.length, WIDTH), leaf(1, 10, WIDTH)
    level = spans(*(queries.length if size < 0 else size for size in shape), reach=10)
    term = ByDistance(q, table, level, queries, keys)
    with forced():
        request = Request(Local(window=9, include_self=False), queries, keys, HEADS, 0.3, None, term)
        found = equals_dense(request, inputs(HEADS, queries.length, keys.length), [q, table, level])
    assert (found[0, 0, 0] == 0).all()


def test_torchs_own_flex_attention_and_its_graphs() -> None:
    with forced(CompiledKernel("eager")), cpu_gradients():
        for queries, keys in PLACES:
            term, more = relative(queries, keys, queries.stop - keys.start)
            equals_dense(Request(Causal(), queries, keys, HEADS, 0.3, None, term), inputs(HEADS, queries.length, keys.length), more)
            q, table, level = leaf(BATCH, HEADS, queries.length, WIDTH), leaf(1, 10, WIDTH), spans(1, HEADS, 1, reach=10)
            term = ByDistance(q, table, level, queries, keys)
            request = Request(Local(window=9), queries, keys, HEADS, 0.3, None, term)
            equals_dense(request, inputs(HEADS, queries.length, keys.length), [q, table, level])


def test_one_tensor_of_all_distances() -> None:
    """The forward pass makes one tensor of (batch, heads, queries, distances): with a kernel that keeps none, nothing else is as large."""
    n = 256
    queries = Range(0, n)

    def kernel(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        return v.clone(), v[..., 0].clone()

    for term in (relative(queries, queries, n)[0], relative(queries, queries, n, ahead=True)[0]):
        request = Request(Causal(), queries, queries, HEADS, 0.3, None, term)
        q, k, v = inputs(HEADS, n)
        with forced(kernel, 128):
            flex.block_mask(request, q.device)
            with Largest() as counted:
                flex.run(q, k, v, request)
        distances = n if term.ahead is None else 2 * n - 1
        size = 8 * BATCH * HEADS * n * distances
        assert counted.largest == size
        assert counted.peak < 2 * size


def test_terms_in_half_precision_are_added_in_float32() -> None:
    queries = Range(0, 20)
    term, _ = relative(queries, queries, 20)
    half = term.to(torch.bfloat16)
    p = flex_terms.by_distance(half)
    assert p.dtype == torch.float32
    close(p, half.q.float() @ half.table.float().mT, 1e-5)
