"""The executor `blocked` off the host: batched pieces equal dense, values and gradients, run on the CPU as if it were an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from contracts.attention_cases import attempt, gaps
from contracts.specimens import BLOCK, LENGTHS, patterns
from formers.attention.executors import batched
from formers.core.devices import Capabilities, assume_capabilities
from formers.patterns import (
    BigBird,
    Blocks,
    Causal,
    Column,
    Fixed,
    Full,
    Globals,
    Local,
    LocalGrid,
    OrderedGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)
from helpers import close, gradients, sweep

GRID = LocalGrid(height=30, width=24, query=(8, 8), memory=(8, 8))
CPU = torch.device("cpu")
LONG: list[Pattern] = [
    Local(window=40),
    Local(window=70, causal=False),
    Blocks(query=200, memory=70),
    Column(stride=7),
    Strided(stride=16),
    Summary(stride=32, summary=5, subblocks=3),
    Fixed(stride=24, summary=4, subblocks=2),
    BigBird(block=16),
    BigBird(block=64, window=1, global_blocks=1, random_blocks=1),
    GRID,
    OrderedGrid(grid=GRID),
    Globals(tokens=9),
    Globals(tokens=5) | BigBird(block=16, global_blocks=0),
    Local(window=9) | Column(stride=16),
    Causal(),
    PerHead(Full(), Local(window=3), Column(stride=16), Fixed(stride=24, summary=4)),
]


@pytest.fixture(autouse=True)
def _off_the_host() -> Iterator[None]:
    with assume_capabilities("cpu", Capabilities(host=False, flex=False)):
        yield


def inputs(n: int, heads: int, batch: int = 2, value_dim: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random q, k and v with gradients."""
    return [torch.randn(batch, heads, n, width, dtype=dtype, requires_grad=True) for width in (4, 4, value_dim)]


def equals_dense(qkv: list[Tensor], pattern: Pattern, **options: Any) -> None:
    """Fails where batched pieces and dense differ, in values or gradients."""
    found, wanted = (formers.attend(*qkv, pattern, how, **options) for how in ("blocked", "dense"))
    close(found, wanted)
    for one, other in zip(gradients(found, qkv), gradients(wanted, qkv), strict=True):
        close(one, other)


def heads_of(pattern: Pattern) -> tuple[int, ...]:
    """The numbers of heads to try."""
    if pattern.heads is not None:
        return (pattern.heads,)
    return (1, 3) if pattern.by_head else (2,)


SWEPT = sweep("pattern", [p.at(0).of(LENGTHS.stop - 1) for p in patterns()])


@SWEPT
def test_every_length(pattern: Pattern) -> None:
    for n in LENGTHS:
        for heads in heads_of(pattern):
            equals_dense(inputs(n, heads), pattern)


@SWEPT
def test_padded_keys_and_rows_without_keys(pattern: Pattern) -> None:
    for n in (1, 2, 5, BLOCK, 2 * BLOCK + 1):
        mask = torch.rand(3, n) < 0.6
        mask[1] = False
        for heads in heads_of(pattern):
            qkv = inputs(n, heads, batch=3, value_dim=3)
            equals_dense(qkv, pattern, mask=mask)
            found = formers.attend(*qkv, pattern, "blocked", mask=mask)
            seen = (pattern.mask(n, heads=heads) & mask[:, None, None, :]).any(dim=-1).expand(3, heads, n)
            assert (found[~seen] == 0).all()
            slopes = gradients(found, qkv)
            assert (slopes[0][~seen] == 0).all()
            assert all((slope[1] == 0).all() for slope in slopes)


@sweep("pattern", LONG)
@sweep("n", [130, 700])
def test_long_rows(pattern: Pattern, n: int) -> None:
    n = pattern.max_length or n  # an image in another order has a plan for the whole image only
    qkv = inputs(n, pattern.heads or 2, value_dim=3)
    equals_dense(qkv, pattern.of(n))
    if not pattern.by_length:
        mask = torch.arange(n) < torch.tensor([[n - 40], [n // 2]])
        mask[:, 3] = False
        equals_dense(qkv, pattern, mask=mask)


@sweep("pattern", LONG)
def test_pieces_above_the_limit_are_split(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    n, heads = pattern.max_length or 300, pattern.heads or 2
    monkeypatch.setattr(batched, "LARGEST", 1 << 18)
    equals_dense(inputs(n, heads), pattern.of(n))
    limit = 1 << 12
    whole, split = (batched.batched_plan(pattern.of(n), n, heads if pattern.by_head else 1, 4, most, CPU) for most in (1 << 26, limit))
    assert all(piece.units == 1 or piece.units * piece.size * piece.keys_each <= limit for part in split.rounds for piece in part)
    divisible = any(piece.units * piece.size * piece.keys_each > limit and piece.units > 1 for part in whole.rounds for piece in part)
    assert (sum(map(len, split.rounds)) > sum(map(len, whole.rounds))) == divisible
    assert divisible or isinstance(pattern, Globals)


@sweep("pattern", [*LONG, Local(window=1, include_self=False)])
def test_dropout_is_the_equation_with_the_same_mask(pattern: Pattern) -> None:
    n, heads, rate = pattern.max_length or 130, pattern.heads or 2, 0.3
    pattern, (q, k, v) = pattern.of(n), inputs(n, heads, value_dim=3)
    torch.manual_seed(5)
    found = formers.attend(q, k, v, pattern, "blocked", dropout=rate)
    torch.manual_seed(5)
    seen = pattern.mask(n, heads=heads).expand(heads, n, n)
    keep = everywhere(pattern, q, rate)
    assert keep[:, seen].double().mean().sub(1 - rate).abs() < 0.05 or not seen.any()
    scores = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(~seen, -1e30)
    weights = torch.softmax(scores, dim=-1) * seen
    wanted = (weights * keep / (1 - rate)) @ v
    close(found, wanted)
    for one, other in zip(gradients(found, [q, k, v]), gradients(wanted, [q, k, v]), strict=True):
        close(one, other)


def everywhere(pattern: Pattern, q: Tensor, rate: float) -> Tensor:
    """The dropout masks of all pieces as one (batch, heads, n, n), drawn in the order of the executor."""
    batch, heads, n, _ = q.shape
    by_head = pattern.by_head
    plan = batched.batched_plan(pattern, n, heads if by_head else 1, 4, 1 << 26, q.device)
    lead, rows = (batch, heads * n) if by_head else (batch * heads, n)
    keep = torch.zeros(lead, rows + 1, rows, dtype=torch.bool)
    for piece in (piece for part in plan.rounds for piece in part):
        drawn = torch.rand(lead * piece.units, piece.size, piece.keys_each).view(lead, piece.units, piece.size, -1) >= rate
        queries = torch.arange(rows) if piece.queries is None else piece.queries
        i, j = queries.view(piece.units, piece.size, 1), piece.keys.view(piece.units, 1, -1)
        hidden = torch.zeros(1, 1, 1, dtype=torch.bool) if piece.hidden is None else piece.hidden
        for unit in range(piece.units):
            shown = ~hidden.expand(piece.units, piece.size, piece.keys_each)[unit]
            a, b = torch.broadcast_tensors(i[unit], j[unit])
            keep[:, a[shown], b[shown]] = drawn[:, unit][:, shown]
    keep = keep[:, :rows]
    if not by_head:
        return keep.view(batch, heads, n, n)
    return keep.view(batch, heads, n, heads, n).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


@sweep("pattern", LONG)
@sweep(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3), (torch.float32, 2e-6)])
def test_lower_precision(pattern: Pattern, dtype: torch.dtype, tolerance: float) -> None:
    n = pattern.max_length or 130
    qkv = inputs(n, pattern.heads or 2, dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in qkv]
    found, wanted = formers.attend(*qkv, pattern.of(n), "blocked"), formers.attend(*exact, pattern.of(n), "dense")
    assert found.dtype == dtype
    close(found.double(), wanted, tolerance)
    for one, other in zip(gradients(found, qkv), gradients(wanted, exact), strict=True):
        assert one.dtype == dtype
        close(one.double(), other, 4 * tolerance * max(1.0, float(other.abs().max())))


def test_large_scores_in_half_precision() -> None:
    """Unscaled products above 65,504 and sums of many values do not overflow."""
    q, k, v = (torch.full((1, 1, 256, 64), value, dtype=torch.float16) for value in (40.0, 40.0, 600.0))
    close(formers.attend(q, k, v, Local(window=128), "blocked"), v)


@sweep("pattern", [Local(window=3), Fixed(stride=4, summary=1), BigBird(block=2, window=1, seed=3)])
def test_gradients_by_finite_differences(pattern: Pattern) -> None:
    qkv, mask = inputs(9, 2), torch.arange(9) < torch.tensor([[9], [7]])
    pattern = pattern.of(9)
    assert torch.autograd.gradcheck(lambda *x: formers.attend(*x, pattern, "blocked", mask=mask), qkv)


def test_inputs_in_other_memory_order_and_without_tokens() -> None:
    qkv = [torch.randn(2, 130, 3, 4, dtype=torch.float64, requires_grad=True).transpose(1, 2) for _ in range(3)]
    equals_dense(qkv, Strided(stride=16))
    assert formers.attend(*(x[:, :, :0] for x in qkv), Local(window=3), "blocked").shape == (2, 3, 0, 4)


def test_autocast_changes_nothing() -> None:
    qkv = inputs(130, 2, dtype=torch.float32)
    plain = formers.attend(*qkv, Strided(stride=16), "blocked")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(formers.attend(*qkv, Strided(stride=16), "blocked"), plain)


def test_tables_of_inference_mode_are_used_in_training() -> None:
    qkv, pattern = inputs(131, 2), Strided(stride=17)
    with torch.inference_mode():
        formers.attend(*qkv, pattern, "blocked")
    equals_dense(qkv, pattern)


def test_sdpa_computes_rows_of_different_lengths() -> None:
    qkv, mask = inputs(40, 2), torch.arange(40) < torch.tensor([[40], [30]])
    pattern = BigBird(block=4)
    assert attempt("blocked", *qkv, pattern, mask=mask) is None
    explained = formers.attention.explain(*qkv, pattern, mask=mask)
    assert "not blocked, because rows have different lengths, and the pattern depends on the length" in explained
    assert explained.startswith("sdpa")
    assert attempt("blocked", *qkv, Local(window=3), queries=gaps(2, 40)) is None
