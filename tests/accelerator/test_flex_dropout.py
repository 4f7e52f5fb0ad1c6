"""Attention dropout by two calls of FlexAttention equals the equation with the same kept pairs, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from accelerator.forced import BLOCK, WIDTH, cpu_gradients, forced, inputs
from formers.attention.executors import dense, flex, flex_dropout
from formers.attention.executors.flex_kernel import CompiledKernel, Kernel
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import BigBird, Local, Pattern
from formers.score import ByDistance
from helpers import close, gradients, sweep

RATE = 0.4


def kept_pairs(seeds: Tensor, n: int, m: int, rate: float = RATE) -> Tensor:
    """The kept pairs (batch, heads, n, m) of some seeds."""
    key = torch.arange(m, dtype=torch.int32)
    return flex_dropout.hash31(seeds[:, :, :n, None], key) >= flex_dropout.threshold(rate)


def drawn(request: Request, batch: int, padded: int) -> Tensor:
    """The seeds that the next call draws from torch's generator."""
    state = torch.get_rng_state()
    seeds = flex_dropout.draw_seeds(batch, request.heads, padded, torch.device("cpu"))
    torch.set_rng_state(state)
    return seeds


def equals_the_equation(request: Request, qkv: list[Tensor], more: list[Tensor], tolerance: float = 1e-10) -> None:
    q, k, v = qkv
    assert flex.unsupported(request, q, k, v) is None
    n, m = q.shape[2], k.shape[2]
    kept = kept_pairs(drawn(request, len(q), n + -n % BLOCK), n, m)
    found = flex.run(q, k, v, request)
    weights = dense.weights(q, k, request._replace(dropout=0.0))
    wanted = (weights * kept / (1.0 - request.dropout)) @ v
    close(found, wanted, tolerance)
    for one, other in zip(gradients(found, [*qkv, *more]), gradients(wanted, [*qkv, *more]), strict=True):
        close(one, other, tolerance)


@sweep("pattern", [Local(window=1), Local(window=3, include_self=False), BigBird(block=4, window=1)])
@sweep("n", [BLOCK, 2 * BLOCK + 3])
def test_dropout(pattern: Pattern, n: int) -> None:
    """With a window of one key a dropped key leaves none."""
    where = Range(0, n)
    with forced():
        equals_the_equation(Request(pattern.of(n), where, where, 2, 0.3, dropout=RATE), inputs(2, n), [])
        mask = torch.arange(n) < torch.tensor([[n], [5], [0]])
        equals_the_equation(Request(pattern, where, where, 2, 0.3, mask, dropout=RATE), inputs(2, n, batch=3), [])


@pytest.mark.parametrize("kernel", [None, CompiledKernel("eager"), CompiledKernel("aot_eager")], ids=["equation", "torch", "both passes"])
def test_dropout_with_a_term_by_distance(kernel: Kernel | None) -> None:
    queries, keys = Range(6, BLOCK + 3), Range(0, BLOCK + 9)
    term_q, table = (torch.randn(2, 2, s, WIDTH, dtype=torch.float64, requires_grad=True) for s in (queries.length, 9))
    term = ByDistance(term_q, table[0], None, queries, keys)
    request = Request(Local(window=8), queries, keys, 2, 0.3, None, term, RATE)
    with cpu_gradients(), forced() if kernel is None else forced(kernel):
        equals_the_equation(request, inputs(2, queries.length, keys.length), [term_q, table])


def test_pairs_are_kept_independently_at_the_rate() -> None:
    torch.manual_seed(5)
    seeds = flex_dropout.draw_seeds(4, 4, 64, torch.device("cpu"))
    for rate in (0.1, 0.5, 0.9):
        kept = kept_pairs(seeds, 64, 512, rate)
        error = (rate * (1.0 - rate) / kept.numel()) ** 0.5
        assert abs(kept.double().mean().item() - (1.0 - rate)) < 4 * error
        by_key = kept.double().mean(dim=(0, 1, 2))
        assert (by_key - (1.0 - rate)).abs().max() < 5 * (rate * (1.0 - rate) / 1024) ** 0.5, "a key is dropped too often"
    kept = kept_pairs(seeds, 64, 512, 0.5)
    for one, other in (
        (kept[0], kept[1]), (kept[:, 0], kept[:, 1]), (kept[:, :, 0], kept[:, :, 1]), (kept[..., :-1], kept[..., 1:]),
        (kept, kept_pairs(flex_dropout.draw_seeds(4, 4, 64, torch.device("cpu")), 64, 512, 0.5)),
    ):  # fmt: skip
        agree = (one == other).double().mean().item()
        assert abs(agree - 0.5) < 5 * 0.5 / one.numel() ** 0.5, "rows, heads, queries, keys or seeds are dropped together"


def test_the_hash_is_the_same_in_int64_indices() -> None:
    seeds = torch.randint(-(1 << 31), 1 << 31, (1000,), dtype=torch.int32)
    keys = torch.randint(1 << 20, (1000,))
    found = flex_dropout.hash31(seeds, keys)
    assert found.dtype == torch.int32
    assert (found >= 0).all()
    assert torch.equal(found, flex_dropout.hash31(seeds, keys.int()))


def test_seeds_follow_torchs_generator() -> None:
    request = Request(Local(window=5), Range(0, 20), Range(0, 20), 2, 0.3, dropout=RATE)
    q, k, v = inputs(2, 20)
    with forced():
        torch.manual_seed(1)
        first, second = flex.run(q, k, v, request), flex.run(q, k, v, request)
        torch.manual_seed(1)
        again = flex.run(q, k, v, request)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_kept_weights_are_independent_of_their_neighbours() -> None:
    """The share that is kept is 1 - rate, also of two weights whose indices differ by one, and at the largest indices."""
    drawn, counted = flex_dropout.draw_seeds(1, 2, 500, torch.device("cpu")), torch.arange(1000, dtype=torch.int32).view(1, 2, 500)
    for seeds in (drawn, counted):  # seeds that follow each other are the hardest case
        for first, rate in ((0, 0.1), (65_000, 0.5), (2**31 - 500, 0.9)):
            key = torch.arange(first, first + 500, dtype=torch.int32)
            kept, other_head = (flex_dropout.hash31(seeds[0, h, :, None], key) >= flex_dropout.threshold(rate) for h in (0, 1))
            _independent(kept, other_head, 1 - rate)


def _independent(kept: Tensor, other_head: Tensor, share: float) -> None:
    assert abs(kept.double().mean().item() - share) < 0.006
    for one, other in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept, other_head), (kept, kept.mT)):
        assert abs((one & other).double().mean().item() - share * share) < 0.006
