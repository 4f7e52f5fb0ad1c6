"""A single query attends to the keys that its pattern reads, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from contracts.attention_cases import inputs
from contracts.specimens import patterns
from formers.attention.attend import survey
from formers.attention.executors import sdpa
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.core.positions import join
from formers.patterns import Causal, Column, Fixed, Full, Local, Pattern, PerHead, Strided, Summary
from helpers import close, gradients, refused, sweep

CAUSAL = [p.at(0) for p in patterns() if p.is_causal]
SPARSE = [
    Strided(stride=4),
    Column(stride=5),
    Fixed(stride=4, summary=1),
    Summary(stride=4, summary=1),
    PerHead(*Strided(stride=4).parts()),
    PerHead(*Fixed(stride=5, summary=2, subblocks=2).parts()),
    Local(window=3) | Column(stride=6),
]
PLACES = [*range(1, 19), 40, 41, 47]


def alike(qkv: list[Tensor], pattern: Pattern, extra: tuple[Tensor, ...] = (), **options: Any) -> None:
    """Fails unless gathered keys give what all keys do, values and gradients."""
    found, wanted = (formers.attend(*qkv, pattern, how, **options) for how in ("gather", "dense"))
    close(found, wanted)
    for one, other in zip(gradients(found, [*qkv, *extra]), gradients(wanted, [*qkv, *extra]), strict=True):
        close(one, other)


@sweep("pattern", CAUSAL)
def test_the_last_of_many_keys(pattern: Pattern) -> None:
    for n in PLACES:
        alike(inputs(1, n), pattern)


@sweep("pattern", SPARSE)
def test_values_of_another_width_padding_and_bias(pattern: Pattern) -> None:
    for n in (1, 9, 17, 41):
        mask = torch.rand(2, n) < 0.6
        mask[1] = False
        for shape in ((2, 2, 1, n), (n,), (2, 1, 1, 1)):
            bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            alike(inputs(1, n, value_dim=3), pattern, (bias,), mask=mask, bias=bias)


@sweep("pattern", SPARSE)
def test_keys_with_gaps(pattern: Pattern) -> None:
    """What a cache holds once it has forgotten what nobody reads; and some later tokens, of which it has forgotten nothing yet."""
    for n in PLACES:
        for later in (0, 1, 6):
            keys = join(pattern.cached(n), Range(n, later + 1), batch=2)
            alike(inputs(1, keys.length), pattern, queries=Range(n + later, 1), keys=keys)


@sweep("pattern", SPARSE)
def test_every_executor_takes_keys_with_gaps(pattern: Pattern) -> None:
    keys = pattern.cached(23)
    for queries in (Range(23, 1), Range(23, 3), Range(30, 2)):
        qkv, rows = inputs(queries.length, keys.length), ExplicitPositions(keys.tensor(), keys.stop)
        for how in ("dense", "sdpa"):
            close(formers.attend(*qkv, pattern, how, queries=queries, keys=keys), formers.attend(*qkv, pattern, queries=queries, keys=rows))


class Kernel:
    """Torch's fused kernel, which notes how many keys it is given, and whether a mask."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.masked: list[bool] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        self.keys.append(k.shape[2])
        self.masked.append(attn_mask is not None)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", kernel)
    return kernel


@pytest.mark.parametrize("n", [1000, 4096, 16384, 16385])
def test_strided_reads_its_stride_and_a_column(kernel: Kernel, n: int) -> None:
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, n, 8)
    for pattern, most in ((Strided(stride=128), 128 + n // 128), (Column(stride=128), 1 + n // 128)):
        close(formers.attend(q, k, k, pattern), formers.attend(q, k, k, pattern, "dense"), 1e-6)
        assert kernel.keys.pop() <= most
        assert not kernel.masked.pop(), "all that is read is seen"
    both = PerHead(Local(window=128), Column(stride=128))
    close(formers.attend(q, k, k, both), formers.attend(q, k, k, both, "dense"), 1e-6)
    assert kernel.keys.pop() <= 128 + n // 128
    assert kernel.masked.pop(), "one head sees the last, the other its column"


def test_auto_gathers_where_it_pays_and_says_so() -> None:
    q, k, v = inputs(1, 64)
    assert formers.explain(q, k, v, Strided(stride=8)).startswith("gather")
    assert "not gather, because the pattern reads more than half" in formers.explain(q, k[:, :, :16], v[:, :, :16], Strided(stride=2 * 7))
    assert "not gather, because the pattern may read all" in formers.explain(q, k, v, Causal())
    assert "not gather, because there is more than one query" in formers.explain(*inputs(2, 64), Strided(stride=8))
    keys = ExplicitPositions(torch.arange(64), 64)
    found = formers.explain(q, k, v, Strided(stride=8), queries=Range(63, 1), keys=keys)
    assert "not gather, because the rows have different key positions" in found
    request = Request(Strided(stride=8), Range(63, 1), Range(0, 64), 2, 1.0)
    first = next(verdict for verdict in survey(q, k, v, request) if verdict.name == "gather")
    assert first.runs
    assert first.about.endswith("15 of 64 keys, without a mask: every query sees every key")


def test_what_cannot_be_gathered_is_refused() -> None:
    with refused("how='gather'", "more than one query"):
        formers.attend(*inputs(3), Full(), "gather")
    with refused("how='gather'", "some of the keys"):
        formers.attend(*inputs(1, 9), Strided(stride=4), "gather", queries=Range(20, 1))
    with refused("how='gather'", "no keys at all"):
        formers.attend(*inputs(1, 0), Strided(stride=4), "gather")


def test_dropout_is_the_kernels() -> None:
    q, k, v = (torch.ones(64, 1, n, 1) for n in (1, 400, 400))
    found = formers.attend(q, k, v, Strided(stride=10), "gather", dropout=0.5)
    assert found.std() > 0
    close(found.mean(), torch.tensor(1.0), 0.1)


@pytest.mark.slow
def test_gathering_compiles_into_one_graph() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(formers.attend, fullgraph=True, backend="aot_eager")
    for n in (60, 61, 62, 75):
        q, k, v = inputs(1, n)
        close(compiled(q, k, v, Strided(stride=8)), formers.attend(q, k, v, Strided(stride=8), "dense"))
