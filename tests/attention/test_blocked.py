"""Attention by pieces: many tiles, many lengths, padded rows, repeated dropout, and bounded memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formers import attend
from formers.attention.executors import blocked
from formers.patterns import (
    BigBird,
    Blocks,
    Causal,
    Column,
    Fixed,
    Full,
    Local,
    LocalGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)
from formers.patterns.text import pattern_text
from helpers import close, sweep

LONG: list[Pattern] = [
    Full(),
    Causal(),
    Local(window=70),
    Local(window=40, causal=False),
    Local(window=65, include_self=False),
    Local(window=30, causal=False, include_self=False),
    Blocks(query=50, memory=30),
    LocalGrid(height=20, width=20, query=(4, 6), memory=(3, 2)),
    Column(stride=7),
    Strided(stride=24),
    Summary(stride=20, summary=3),
    Fixed(stride=20, summary=3),
    Fixed(stride=12, summary=4, subblocks=3),
    BigBird(block=16, window=3, global_blocks=2, random_blocks=2),
    BigBird(block=10, window=1, global_blocks=1, random_blocks=1, seed=5),
    PerHead(*Strided(stride=33).parts()),
    Local(window=40) | Column(stride=9),
]


def both(pattern: Pattern, n: int, batch: int = 1, mask: torch.Tensor | None = None, how: str = "blocked", seed: int = 0):
    """Output and gradients of random tensors."""
    torch.manual_seed(seed)
    q, k = (torch.randn(batch, 2, n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(batch, 2, n, 5, dtype=torch.float64, requires_grad=True)
    y = attend(q, k, v, pattern, how, mask=mask)
    return y, *torch.autograd.grad(y, (q, k, v), torch.randn_like(y))


def agree(pattern: Pattern, n: int, **options) -> None:
    """Fails unless pieces and the equation agree, values and gradients."""
    for ours, dense in zip(both(pattern, n, **options), both(pattern, n, **{**options, "how": "dense"}), strict=True):
        close(ours, dense, 1e-10)


@sweep("pattern", LONG)
@settings(max_examples=6, deadline=None)
@given(n=st.integers(60, 400), tile=st.sampled_from([1, 3000, 20000, 1 << 17]), seed=st.integers(0, 99))
def test_any_length_in_tiles_of_any_size(pattern: Pattern, n: int, tile: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "TILE", tile)
        agree(pattern, n, seed=seed)


@sweep("pattern", [p for p in LONG if p.of(200) is p])
def test_padding_in_the_middle_of_long_rows(pattern: Pattern) -> None:
    mask = torch.rand(3, 200, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[2] = False
    mask[1, 90:170] = False
    agree(pattern, 200, batch=3, mask=mask)


@sweep("pattern", [Local(window=70), Fixed(stride=20, summary=3), Strided(stride=24)])
def test_far_apart_scores_are_neither_lost_nor_undefined(pattern: Pattern) -> None:
    """Scores of hundreds, of which float32 holds no exponentials."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 150, 4) for _ in range(3))
    y = attend(q * 200, k * 20, v, pattern, "blocked")
    close(y, attend(q.double() * 200, k.double() * 20, v.double(), pattern, "dense").float(), 2e-3)
    assert y.isfinite().all()


@sweep("pattern", [Local(window=70), Fixed(stride=20, summary=3), BigBird(block=16)])
def test_dropout_is_the_same_in_both_directions(pattern: Pattern) -> None:
    """The output is linear in the values: its gradient, in a direction, is its change."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(1, 2, 150, 4, dtype=torch.float64) for _ in range(4))
    torch.manual_seed(3)
    v.requires_grad_()
    y = attend(q, k, v, pattern, "blocked", dropout=0.4)
    (slope,) = torch.autograd.grad(y, v, g)
    torch.manual_seed(3)
    moved = attend(q, k, v.detach() + g, pattern, "blocked", dropout=0.4)
    close(((moved - y) * g).sum(), (slope * g).sum(), 1e-9)
    torch.manual_seed(3)
    short = (q[..., :40, :].requires_grad_(), k[..., :40, :].requires_grad_())
    assert torch.autograd.gradcheck(lambda q, k: _seeded(q, k, v.detach(), pattern), short, fast_mode=True)


def _seeded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    torch.manual_seed(3)
    return attend(q, k, v[..., : q.shape[2], :], pattern, "blocked", dropout=0.3)


@sweep("pattern", [Local(window=256), Strided(stride=128), Fixed(stride=128, summary=16), BigBird(block=64)])
def test_nothing_is_as_large_as_all_pairs(pattern: Pattern) -> None:
    """The largest tensor that is made, in either direction, at a length where all pairs would be a hundred times as many."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.size = max(self.size, out.untyped_storage().nbytes() // 4)
            return out

    n = 4096
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    rest = (pattern_text(pattern), 0.25, 0.0)
    with torch.no_grad(), Largest() as largest:  # what is inside the operation, which otherwise is one thing from outside
        y, lse = blocked.forward(q, k, v, None, None, *rest)
        blocked.backward(torch.ones_like(y), q, k, v, None, None, y, lse, *rest)
    assert largest.size <= max(n * 16 * 4, 4 * blocked.TILE), largest.size
    assert largest.size < n * n / 30
    assert math.isfinite(y.sum().item())


def test_a_gradient_of_a_gradient_is_refused() -> None:
    q, k, v = (torch.randn(1, 1, 80, 4, requires_grad=True) for _ in range(3))
    y = attend(q, k, v, Local(window=9), "blocked")
    (slope,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="grad"):
        slope.sum().backward()


@sweep("pattern", [Local(window=64), Fixed(stride=32, summary=4), BigBird(block=16)])
@sweep("dtype", [torch.float32, torch.bfloat16])
def test_fake_tensors_pass(pattern: Pattern, dtype: torch.dtype) -> None:
    """What `explain` counts costs with, dropout included."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.randn(1, 2, 600, 16, requires_grad=True, dtype=dtype) for _ in range(3))
        y = attend(q, k, v, pattern, "blocked", dropout=0.2)
        slopes = torch.autograd.grad(y.sum(), (q, k, v))
    assert {tuple(t.shape) for t in (y, *slopes)} == {(1, 2, 600, 16)}
    assert {t.dtype for t in (y, *slopes)} == {dtype}


def test_what_is_dropped_does_not_depend_on_threads() -> None:
    def slope(forward: int, backward: int) -> torch.Tensor:
        torch.manual_seed(0)
        q = torch.randn(1, 1, 1100, 8, requires_grad=True)
        torch.set_num_threads(forward)
        y = attend(q, q, q, Local(window=200), "blocked", dropout=0.3)
        torch.set_num_threads(backward)
        return torch.autograd.grad(y.square().sum(), q)[0]

    threads = torch.get_num_threads()
    try:
        wanted = slope(1, 1)
        for forward, backward in ((1, 2), (2, 2)):
            close(slope(forward, backward), wanted, 1e-4)
    finally:
        torch.set_num_threads(threads)


def test_rows_are_padded_for_the_largest_block_alone() -> None:
    pattern = PerHead(*(BigBird(block=b) for b in (17, 19, 23, 29))).of(200)
    assert blocked._work(torch.zeros(1, 4, 200, 2), pattern, 1.0, 0.0, 0).more < 29
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 200, 3, dtype=torch.float64) for _ in range(3))
    close(attend(q, k, v, pattern, "blocked"), attend(q, k, v, pattern, "dense"), 1e-10)
