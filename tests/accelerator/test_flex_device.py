"""FlexAttention on the test device: no mixed devices, no waits, and the same few launches for any number of rows and heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from accelerator.device import NAME, Counts, use_test_device
from contracts.specimens import patterns
from formers.attention.attend import choose, run, signature
from formers.attention.executors import dense, flex
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import BigBird, Causal, Full, Local, Pattern, Strided
from formers.score import ByDistance
from helpers import close, sweep

WIDTH = 16
MOST = 60
"""Launches of an attention call, forward and backward."""


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).to(NAME).requires_grad_()


def relative(batch: int, heads: int, n: int) -> tuple[Request, list[Tensor]]:
    """A request with relative scores over n tokens and n of memory, and what it is computed from."""
    queries, keys = Range(n, n), Range(0, 2 * n)
    q, far = (on_device(batch, heads, n, WIDTH) for _ in range(2))
    k, v = (on_device(batch, heads, 2 * n, WIDTH) for _ in range(2))
    table = on_device(heads, 2 * n, WIDTH)
    return Request(Causal(), queries, keys, heads, 0.25, None, ByDistance(far, table, None, queries, keys)), [q, k, v, far, table]


def plain(pattern: Pattern, batch: int, heads: int, n: int, dropout: float = 0.0) -> tuple[Request, list[Tensor]]:
    request = Request(pattern.of(n), Range(0, n), Range(0, n), heads, 0.25, dropout=dropout)
    return request, [on_device(batch, heads, n, WIDTH) for _ in range(3)]


def launches(counts: Counts, request: Request, tensors: list[Tensor]) -> int:
    """The launches of both passes, after a first call that makes the lists of blocks."""
    for _ in range(2):
        counts.reset()
        out = run(*tensors[:3], request)
        torch.autograd.grad(out, tensors, torch.ones_like(out))
    assert choose(request, *tensors[:3]).name == "flex"
    assert counts.waits == 0, str(counts)
    assert not counts.copied, str(counts)
    return counts.launches


def test_relative_scores_need_few_launches() -> None:
    with use_test_device(shapes_only=True) as counts:
        few = launches(counts, *relative(2, 2, 512))
        assert few <= MOST, str(counts)
        assert launches(counts, *relative(4, 4, 512)) == few


@sweep("dropout", [0.0, 0.1])
@sweep("pattern", [Strided(stride=16), BigBird(block=64), Local(window=100)])
def test_patterns_need_few_launches(pattern: Pattern, dropout: float) -> None:
    with use_test_device(shapes_only=True) as counts:
        few = launches(counts, *plain(pattern, 2, 2, 520, dropout))
        assert few <= MOST, str(counts)
        assert launches(counts, *plain(pattern, 4, 4, 520, dropout)) == few


def test_rows_of_different_lengths_need_few_launches() -> None:
    """Their tables are made once for all lengths."""
    with use_test_device(shapes_only=True) as counts:
        found = []
        for rows in (2, 4):
            request, qkv = plain(BigBird(block=64), rows, rows, 520, 0.1)
            valid = torch.ones(rows, 520, dtype=torch.bool).to(qkv[0].device)
            found.append(launches(counts, request._replace(pattern=BigBird(block=64), valid=valid), qkv))
        assert found[0] == found[1] <= MOST, str(counts)


@pytest.mark.slow
def test_relative_scores_of_a_long_segment() -> None:
    with use_test_device(shapes_only=True) as counts:
        assert launches(counts, *relative(8, 8, 4096)) <= MOST, str(counts)


@sweep("pattern", patterns())
def test_every_pattern_runs_on_the_device(pattern: Pattern) -> None:
    """Padded, with rows of different lengths; nothing is read, and nothing is mixed with tensors of the CPU."""
    n = 20
    with use_test_device() as counts:
        q, k, v = (on_device(3, 2, n, WIDTH, dtype=torch.float64) for _ in range(3))
        valid = (torch.arange(n) < torch.tensor([[n], [7], [0]])).to(NAME)
        request = Request(pattern.at(0), Range(0, n), Range(0, n), 2, 0.25, valid)
        assert flex.unsupported(request, q, k, v) is None
        flex.run(q, k, v, request)
        counts.reset()
        found = flex.run(q, k, v, request)
        assert counts.waits == 0, str(counts)
        assert not counts.copied, str(counts)
        slopes = torch.autograd.grad(found.sum(), [q, k, v])
        found, *slopes = (x.cpu() for x in (found, *slopes))
        here = [x.detach().cpu().requires_grad_() for x in (q, k, v)]
        valid = valid.cpu()
    wanted = dense.run(*here, request._replace(valid=valid))
    close(found, wanted.detach())
    for one, other in zip(slopes, torch.autograd.grad(wanted.sum(), here), strict=True):
        close(one, other)


def test_short_rows_narrow_heads_and_full_attention_go_to_the_fused_kernel() -> None:
    def taken(n: int, width: int, pattern: Pattern, padded: bool = False) -> str:
        q = torch.randn(2, 2, n, width, device=NAME)
        valid = torch.ones(2, n, dtype=torch.bool, device=NAME) if padded else None
        bound = pattern if padded else pattern.of(n)
        return choose(Request(bound, Range(0, n), Range(0, n), 2, 0.25, valid), q, q, q).name

    with use_test_device():
        assert taken(600, 16, Strided(stride=16)) == "flex"
        assert taken(600, 16, Strided(stride=16), True) == "flex"
        assert taken(600, 16, Causal(), True) == "flex"
        assert taken(600, 16, BigBird(block=64), True) == "flex"
        assert taken(100, 16, Strided(stride=16)) == "sdpa"
        assert taken(600, 16, Causal()) == "sdpa"
        assert taken(600, 16, Full()) == "sdpa"
        assert taken(600, 16, Full(), True) == "sdpa"
        assert taken(600, 8, Strided(stride=16)) != "flex"
        assert taken(600, 16, BigBird(block=1), True) == "flex"
        assert "table of blocks" in str(flex.unsupported(*big()))
    with use_test_device(flex=False):
        assert taken(600, 16, Strided(stride=16)) != "flex"


def big() -> tuple[Request, Tensor, Tensor, Tensor]:
    """A request whose table of blocks would be large."""
    n = 8192
    q = torch.empty(1, 2, n, WIDTH, device=NAME)
    return Request(BigBird(block=1).of(n), Range(0, n), Range(0, n), 2, 0.25), q, q, q


def test_the_choice_depends_on_what_a_device_can_do() -> None:
    """Another executor may be chosen for the same shapes if the capabilities of the device change."""
    signatures = []
    for flex_too in (True, False):
        with use_test_device(flex=flex_too):
            request, qkv = plain(Strided(stride=16), 1, 2, 600)
            signatures.append(signature(request, *qkv))
    assert signatures[0] != signatures[1]
