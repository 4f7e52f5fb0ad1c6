"""Batches of random sizes and lengths share few kernels: torch.compile with a backend that counts graphs and runs them eagerly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from accelerator.forced import WIDTH, Counting, cpu_gradients, forced, inputs
from formers.attention.executors import dense, flex
from formers.attention.executors.flex_kernel import CompiledKernel
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import (
    BigBird,
    Blocks,
    Causal,
    Column,
    Fixed,
    Full,
    Globals,
    Intersection,
    Local,
    LocalGrid,
    OrderedGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)  # fmt: skip
from formers.score import ByDistance
from helpers import close, gradients, sweep

GRID = LocalGrid(height=14, width=16, query=(2, 4), memory=(2, 2))
SPARSE: list[Pattern] = [
    Causal(),
    Local(window=20),
    Local(window=5, causal=False, include_self=False),
    Blocks(query=10, memory=7),
    Strided(stride=9),
    Column(stride=6),
    Fixed(stride=12, summary=3),
    Fixed(stride=12, summary=3, subblocks=2),
    Summary(stride=8, summary=2),
    BigBird(block=8, window=1),
    Globals(tokens=3),
    GRID,
    OrderedGrid(grid=GRID),
    PerHead(Local(window=9), Column(stride=5)),
    Globals(tokens=3) | BigBird(block=8, window=1, random_blocks=1),
    Intersection(first=Causal(), second=Local(window=7, causal=False)),
]
MOST = 4
"""Graphs of a pattern in training, and in evaluation."""
BLOCK = 16


@contextmanager
def counted() -> Iterator[Counting]:
    """A context in which the CPU's FlexAttention is compiled by a backend that counts."""
    backend = Counting(both=True)
    with forced(CompiledKernel(backend), BLOCK), cpu_gradients():
        yield backend


def batches(count: int) -> Iterator[tuple[int, int]]:
    """Random batch sizes and lengths, from one row and one block."""
    numbers = random.Random(3)
    for _ in range(count):
        yield numbers.randint(1, 6), numbers.randint(BLOCK, 14 * BLOCK)


def graphs(pattern: Pattern, steps: int, learning: bool, padded: bool, checked: int = 3) -> int:
    """The number of graphs for batches of two layers; the first batches are compared with dense."""
    with counted() as backend, torch.set_grad_enabled(learning):
        for step, (batch, n) in enumerate(batches(steps)):
            qkv = inputs(2, n, batch=batch, grad=learning)
            mask = torch.arange(n) < torch.randint(1, n + 1, (batch, 1)) if padded else None
            for layer in range(2):
                bound = pattern.at(layer)
                request = Request(bound if padded else bound.of(n), Range(0, n), Range(0, n), 2, 0.25, mask)
                agrees(request, qkv, learning, step < checked)
        return len(backend.graphs)


def agrees(request: Request, qkv: list[Tensor], learning: bool, checked: bool) -> None:
    found = flex.run(*qkv, request)
    slopes = gradients(found, qkv) if learning else ()
    if checked:
        wanted = dense.run(*qkv, request)
        close(found, wanted)
        for one, other in zip(slopes, gradients(wanted, qkv) if learning else (), strict=True):
            close(one, other)


@sweep(
    ("pattern", "padded"),
    [(Local(window=20), True), (BigBird(block=8, window=1), True), (PerHead(Local(window=9), Column(stride=5)), False)],
)
def test_a_pattern_has_few_graphs(pattern: Pattern, padded: bool) -> None:
    assert graphs(pattern, 6, True, padded, 2) <= MOST
    assert graphs(pattern, 6, False, padded, 2) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("pattern", SPARSE, ids=repr)
def test_200_batches(pattern: Pattern) -> None:
    for padded in (False, True):
        assert graphs(pattern, 200, True, padded) <= MOST
        assert graphs(pattern, 200, False, padded) <= MOST


def test_layers_of_bigbird_share_their_graphs() -> None:
    n = 4 * BLOCK
    with counted() as backend:
        for layer in range(4):
            for seed in (1, 2):
                pattern = BigBird(block=8, window=1, seed=seed).at(layer).of(n)
                flex.run(*inputs(2, n), Request(pattern, Range(0, n), Range(0, n), 2, 0.25))
        assert len(backend.graphs) == 1


def test_segments_with_a_memory_and_a_term_share_their_graphs() -> None:
    """Offsets, the number of distances and the length of the memory are dynamic, too; dropout has a second mask."""
    with counted() as backend:
        for start, n, m in ((0, 64, 64), (64, 64, 128), (128, 64, 150), (192, 70, 150), (262, 64, 160), (326, 33, 100)):
            queries, keys = Range(start, n), Range(start + n - m, m)
            q, k, v = inputs(2, n, m)
            far, table = (torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True) for shape in ((2, 2, n), (2, m)))
            term = ByDistance(far, table, None, queries, keys)
            out = flex.run(q, k, v, Request(Causal(), queries, keys, 2, 0.25, None, term, 0.1))
            torch.autograd.grad(out.sum(), [q, k, v, far, table])
        assert len(backend.graphs) <= MOST


@sweep("pattern", [Local(window=9), Full()])
def test_dropout_has_two_masks(pattern: Pattern) -> None:
    with counted() as backend:
        for batch, n in batches(10):
            q, k, v = inputs(2, n, batch=max(batch, 2))
            out = flex.run(q, k, v, Request(pattern, Range(0, n), Range(0, n), 2, 0.25, None, None, 0.1 + 0.01 * batch))
            torch.autograd.grad(out.sum(), [q, k, v])
        assert len(backend.graphs) <= MOST
