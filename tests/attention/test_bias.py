"""Scores masked by a bias: a row without keys is 0 in every executor."""

from __future__ import annotations

import torch

import formers
from formers.attention import EXECUTORS
from formers.patterns import Causal, Full, Strided
from helpers import close, gradients, sweep

INFINITE = float("-inf")
WITH_A_BIAS = [name for name in EXECUTORS if name not in ("blocked", "flex", "gather", "distances")]
"""Pieces and FlexAttention refuse a bias, and `distances` one that is a tensor; gathering, which takes one query, is tried below."""


@sweep("pattern", [Full(), Causal()])
@sweep("how", WITH_A_BIAS)
def test_a_row_closed_by_the_bias_gives_0_and_no_gradient(how, pattern):
    q, k, v = torch.randn(3, 2, 2, 4, 3, dtype=torch.float64).unbind()
    bias = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    bias[:, :, 1] = INFINITE
    bias[:, :, 3, 2] = INFINITE
    for t in (q, k, v):
        t.requires_grad_()
    y = formers.attend(q, k, v, pattern, how, bias=bias)
    assert (y[:, :, 1] == 0).all()
    found = gradients(y, [q, k, v])
    assert all(g.isfinite().all() for g in found)
    assert (found[0][:, :, 1] == 0).all()
    wanted = formers.attend(q, k, v, pattern, "dense", bias=bias)
    close(y, wanted)
    for one, other in zip(found, gradients(wanted, [q, k, v]), strict=True):
        close(one, other)


@sweep("how", WITH_A_BIAS)
def test_a_bias_of_few_dimensions_or_another_precision_is_broadcast(how):
    q, k, v = torch.randn(3, 1, 2, 4, 3).unbind()
    bias = torch.randn(4, dtype=torch.float64)
    wanted = formers.attend(q, k, v, how="dense", bias=bias.float().expand(1, 2, 4, 4))
    close(formers.attend(q, k, v, how=how, bias=bias), wanted, 1e-6)


def test_one_query_whose_keys_the_bias_closes_gives_0_and_no_gradient():
    q, k, v = torch.randn(1, 2, 1, 3), torch.randn(1, 2, 40, 3), torch.randn(1, 2, 40, 3)
    bias = torch.zeros(1, 2, 1, 40)
    bias[:, 0] = INFINITE
    q.requires_grad_()
    y = formers.attend(q, k, v, Strided(stride=5), "gather", bias=bias)
    assert (y[:, 0] == 0).all()
    assert (y[:, 1] != 0).all()
    (slope,) = gradients(y, [q])
    assert (slope[:, 0] == 0).all()


def test_large_half_precision_scores_do_not_overflow():
    q = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    v = torch.arange(3.0).half()[None, None, :, None].expand(1, 1, 3, 4)
    close(formers.attend(q, q, v, how="dense"), torch.ones(1, 1, 3, 4).half(), 1e-2)
