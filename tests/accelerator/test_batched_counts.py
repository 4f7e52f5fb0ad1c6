"""The executor `blocked` on the test device: launches, waits, copies and memory."""

from __future__ import annotations

import pytest
import torch

import formers
from accelerator.device import NAME, Counts, use_test_device
from formers.attention.executors.batched_plan import batched_plan
from formers.patterns import (
    BigBird,
    Blocks,
    Column,
    Fixed,
    Globals,
    Local,
    LocalGrid,
    OrderedGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)
from formers.patterns.plan import pairs
from helpers import close, sweep

MOST_LAUNCHES = 300
GRID = LocalGrid(height=64, width=64, query=(8, 8), memory=(8, 8))
ALIKE: list[Pattern] = [
    Local(window=128),
    Local(window=64, causal=False),
    Blocks(query=128, memory=128),
    Strided(stride=64),
    Fixed(stride=64, summary=8),
    Fixed(stride=64, summary=8, subblocks=8),
    Summary(stride=64, summary=8),
    Column(stride=64),
    BigBird(block=64),
    GRID,
    OrderedGrid(grid=GRID),
    Local(window=64) | Column(stride=64),
    Globals(tokens=16) | BigBird(block=64, global_blocks=0),
]
CASES = [*((p, p) for p in ALIKE), (PerHead(*Strided(stride=64).parts()), PerHead(*Strided(stride=64).parts() * 2))]
"""Patterns for two and four heads."""


def count(
    pattern: Pattern, batch: int, heads: int, n: int, counts: Counts,
    dtype: torch.dtype = torch.float32, padded: bool = False, dropout: float = 0.0,
) -> int:  # fmt: skip
    """The launches of both passes; fails at a wait or a copy."""
    q, k, v = (torch.randn(batch, heads, n, 64, device=NAME, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.ones(batch, n, dtype=torch.bool, device=NAME) if padded else None
    pattern = pattern.of(n)
    formers.attend(q, k, v, pattern, "blocked", mask=mask, dropout=dropout).sum().backward()  # makes the plan
    counts.reset()
    formers.attend(q, k, v, pattern, "blocked", mask=mask, dropout=dropout).sum().backward()
    assert (counts.waits, counts.copied.total()) == (0, 0), str(counts)
    return counts.launches


@sweep(("two", "four"), CASES)
def test_launches_do_not_depend_on_rows_and_heads(two: Pattern, four: Pattern) -> None:
    with use_test_device(flex=False, shapes_only=True) as counts:
        assert count(two, 2, 2, 1024, counts) == count(four, 4, 4, 1024, counts) <= MOST_LAUNCHES


@pytest.mark.slow
@sweep("pattern", [*ALIKE, PerHead(*Strided(stride=64).parts() * 4)])
@sweep("dtype", [torch.float32, torch.float16])
@sweep(("padded", "dropout"), [(False, 0.0), (True, 0.1)])
def test_launches_of_a_layer(pattern: Pattern, dtype: torch.dtype, padded: bool, dropout: float) -> None:
    with use_test_device(flex=False, shapes_only=True) as counts:
        found = count(pattern.of(4096), 8, 8, 4096, counts, dtype, padded, dropout)
        assert found <= MOST_LAUNCHES, f"{found}\n{counts}"


@sweep("pattern", [Strided(stride=16), BigBird(block=16), PerHead(Local(window=9), Column(stride=16))])
@sweep("float64", [True, False])
def test_the_device_computes_what_the_cpu_computes(pattern: Pattern, float64: bool) -> None:
    dtype, n = torch.float64 if float64 else torch.float32, 130
    qkv = [torch.randn(2, 2, n, 4, dtype=dtype, requires_grad=True) for _ in range(3)]
    mask = torch.arange(n) < torch.tensor([[n], [n - 9]])
    wanted, g = formers.attend(*qkv, pattern.of(n), "dense", mask=mask), torch.randn(2, 2, n, 4, dtype=dtype)
    slopes = torch.autograd.grad(wanted, qkv, g)
    with use_test_device(float64=float64, flex=False):
        there = [x.detach().to(NAME).requires_grad_() for x in qkv]
        found = formers.attend(*there, pattern.of(n), "blocked", mask=mask.to(NAME))
        close(found.cpu(), wanted, 1e-10 if float64 else 1e-5)
        for one, other in zip(torch.autograd.grad(found, there, g.to(NAME)), slopes, strict=True):
            close(one.cpu(), other, 1e-10 if float64 else 1e-4)


def test_a_sparse_member_trains_on_a_device_without_flex() -> None:
    model, tokens = (
        formers.create("sparse-transformer", vocab=11, dim=16, layers=2, length=530, dropout=0.0).double(),
        torch.randint(11, (2, 531)),
    )
    model(tokens[:, :-1], targets=tokens[:, 1:]).loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with use_test_device(flex=False) as counts:
        there = model.to(NAME)
        there(tokens[:, :-1].to(NAME), targets=tokens[:, 1:].to(NAME)).loss.backward()
        assert counts.waits == 0, str(counts)
        assert any("batched.py" in where for where in counts.launched), "another executor ran"
        for name, p in there.named_parameters():
            close(p.grad.cpu(), wanted[name])


@sweep("pattern", [Local(window=128), Blocks(query=128, memory=128), PerHead(Local(window=64), Blocks(query=64, memory=64))])
def test_memory_grows_linearly(pattern: Pattern) -> None:
    largest = []
    with use_test_device(flex=False, shapes_only=True) as counts:
        for n in (2048, 4096, 8192):
            count(pattern, 1, 2, n, counts)
            largest.append(counts.largest)
            assert counts.largest < n * n
    assert largest[1] / largest[0] < 2.1
    assert largest[2] / largest[1] < 2.1


@sweep("pattern", [p for p, _ in CASES])
@sweep("n", [4096, 4100])
def test_padding_is_a_small_part_of_the_pairs(pattern: Pattern, n: int) -> None:
    n = min(n, pattern.max_length or n)
    pattern, heads = pattern.of(n), 2 if pattern.by_head else 1
    plan = batched_plan(pattern, n, heads, 64, 1 << 26, torch.device("cpu"))
    computed = sum(piece.units * piece.size * piece.keys_each for part in plan.rounds for piece in part)
    assert computed <= 1.4 * sum(pairs(pattern.pieces(n, head)) for head in range(heads))
