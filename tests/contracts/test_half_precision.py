"""Half precision: every executor handles scores above float16's largest number, and dense is as exact as its dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from contracts.attention_cases import SWEPT_EXECUTORS, attempt
from formers.attention.attend import run
from formers.attention.executors import dense
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Causal, Full, Local
from formers.score import ByDistance
from helpers import close, gradients

N, WIDTH = 9, 16
# Two roundings of the result: of the weights, which are at most 1, and of the output.
EPSILONS = {torch.float16: 2 * 2.0**-11, torch.bfloat16: 2 * 2.0**-8}


def inputs(size: float, dtype: torch.dtype, width: int = WIDTH) -> list[Tensor]:
    """q and k so large that scores are about size^2 * sqrt(width), and values below 1."""
    q, k, v = (torch.randn(2, 2, N, width) for _ in range(3))
    return [t.to(dtype) for t in (size * q, size * k, torch.tanh(v))]


@pytest.mark.parametrize("dtype", EPSILONS, ids=str)
@pytest.mark.parametrize("how", SWEPT_EXECUTORS)
def test_large_scores(how: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for size in (1.0, 30.0, 300.0):
        for pattern in (Full(), Causal(), Local(window=3)):
            qkv = inputs(size, dtype)
            wanted = formers.attend(*(t.double() for t in qkv), pattern, "dense")
            found = attempt(how, *qkv, pattern)
            if found is not None:
                assert found.dtype == dtype
                # In float32 scores of 1e6 are known to about 0.1: only the largest weight is compared there.
                close(found.double(), wanted, EPSILONS[dtype] if size < 300 else 0.5)


@pytest.mark.parametrize("dtype", EPSILONS, ids=str)
def test_dense_is_exact_to_a_rounding(dtype: torch.dtype) -> None:
    """Values, weights and gradients are those of float64 rounded; float64 and float32 inputs keep their types."""
    torch.manual_seed(0)
    qkv = [t.requires_grad_() for t in inputs(1.0, dtype)]
    exact = [t.detach().double().requires_grad_() for t in qkv]
    mask = torch.rand(2, N) < 0.7
    found, wanted = (formers.attend(*each, Causal(), "dense", mask=mask) for each in (qkv, exact))
    close(found.double(), wanted, EPSILONS[dtype] / 2)
    for one, other in zip(gradients(found, qkv), gradients(wanted, exact), strict=True):
        close(one.double(), other, 4 * EPSILONS[dtype])
    request = Request(Causal(), Range(0, N), Range(0, N), 2, 1.0)
    weights = dense.weights(*qkv[:2], request)
    assert weights.dtype == dtype
    close(weights.double(), dense.weights(*exact[:2], request), EPSILONS[dtype] / 2)
    for kind in (torch.float32, torch.float64):
        same = [t.detach().to(kind) for t in qkv]
        assert dense.weights(*same[:2], request).dtype == dense.run(*same, request).dtype == kind


def test_dense_in_float32_is_what_it_was() -> None:
    """The plain equation, bit for bit."""
    torch.manual_seed(0)
    q, k, v = inputs(2.0, torch.float32)
    allowed = torch.ones(N, N, dtype=torch.bool).tril()
    scores = ((q * 0.25) @ k.mT).masked_fill(~allowed, float("-inf"))
    assert torch.equal(formers.attend(q, k, v, Causal(), "dense", scale=0.25), torch.softmax(scores, dim=-1) @ v)


def test_a_large_term_by_distance() -> None:
    torch.manual_seed(0)
    q, k, v = inputs(1.0, torch.float16)
    many = [(300 * torch.randn(shape)).half() for shape in ((2, 2, N, WIDTH), (2, N, WIDTH))]
    where = Range(0, N)
    found, wanted = (
        run(*(t.to(dtype) for t in (q, k, v)), Request(Causal(), where, where, 2, 0.25, bias=term(many, dtype)), "dense")
        for dtype in (torch.float16, torch.float64)
    )
    close(found.double(), wanted, 0.5)


def term(many: list[Tensor], dtype: torch.dtype) -> ByDistance:
    """A term by distance of the numbers `many`, in a type."""
    return ByDistance(many[0].to(dtype), many[1].to(dtype), None, Range(0, N), Range(0, N))


@pytest.mark.parametrize("dtype", EPSILONS, ids=str)
def test_autocast_does_not_lower_dense(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    qkv = inputs(300.0, dtype)
    with torch.autocast("cpu", dtype=dtype):
        found = formers.attend(*qkv, Causal(), "dense")
    assert torch.equal(found, formers.attend(*qkv, Causal(), "dense"))


def test_inspect_survives_large_scores_in_float16() -> None:
    torch.manual_seed(0)
    model = formers.create("decoder", vocab=11, dim=16, heads=2, layers=2, hidden=24, length=16, dropout=0.0).eval()
    with torch.no_grad():
        for block in model.stack.depth.blocks:
            block.attention.qkv.weight *= 300
    seen = model.half().inspect(torch.randint(11, (2, N)))
    for maps in seen.attention:
        assert maps.isfinite().all()
        close(maps.float().sum(dim=-1), torch.ones(maps.shape[:-1]), 1e-2)
