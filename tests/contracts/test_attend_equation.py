"""Every executor computes the equation, compared with Python loops over single numbers."""

from __future__ import annotations

import torch

import formers
from contracts.attention_cases import EVERY, SWEPT, attempt, by_loops, gaps, inputs
from contracts.specimens import PATTERNS
from formers.attention import EXECUTORS
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.patterns import Causal, Full, Pattern
from helpers import close, gradients, refused


def agrees(how: str, qkv: list[torch.Tensor], pattern: Pattern, **options: object) -> None:
    """Fails where an executor and the loops differ; an executor that says that it cannot is left out."""
    found = attempt(how, *qkv, pattern, **options)
    if found is None:
        return
    wanted = by_loops(*qkv, pattern, **options)
    close(found, wanted)
    for one, other in zip(gradients(found, qkv), gradients(wanted, qkv), strict=True):
        close(one, other)


@EVERY
@SWEPT
def test_values_and_gradients(how: str, pattern: Pattern) -> None:
    agrees(how, inputs(5, batch=1), pattern)


@EVERY
@SWEPT
def test_queries_at_the_end_of_longer_keys(how: str, pattern: Pattern) -> None:
    agrees(how, inputs(2, 6, batch=1), pattern)


@EVERY
@SWEPT
def test_values_of_another_width_padding_and_bias(how: str, pattern: Pattern) -> None:
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    bias = torch.randn(1, 2, 1, 5, dtype=torch.float64)
    agrees(how, inputs(5, value_dim=3), pattern, mask=mask, bias=bias)


@EVERY
@SWEPT
def test_positions_with_gaps_and_empty_places(how: str, pattern: Pattern) -> None:
    agrees(how, inputs(3, 5), pattern, queries=gaps(2, 3, seed=1), keys=gaps(2, 5, seed=2))
    agrees(how, inputs(3, 5, batch=1), pattern, queries=Range(4, 3), keys=gaps(1, 5, seed=3))
    agrees(how, inputs(3, 5, batch=1), pattern, queries=ExplicitPositions(torch.tensor([6, 2, 4]), 7), keys=Range(1, 5))


@EVERY
def test_a_given_scale(how: str) -> None:
    agrees(how, inputs(4, batch=1), Causal(), scale=0.3)


@EVERY
def test_equal_keys_give_the_mean_of_the_values(how: str) -> None:
    q, k, v = inputs(7)
    tried = [attempt(how, q[:, :, -n:], k[:, :, :1].expand_as(k), v, Full()) for n in (1, 7)]
    assert any(found is not None for found in tried)
    for found in tried:
        if found is not None:
            close(found, v.mean(dim=2, keepdim=True).expand(found.shape))


def test_an_empty_place_is_not_seen_whatever_a_pattern_says() -> None:
    class Careless:
        by_head = by_length = False

        def allows(self, i: torch.Tensor, j: torch.Tensor, head: object) -> torch.Tensor:
            return (i - j) > 0

    keys = ExplicitPositions(torch.tensor([[-1, 0, 1], [0, -1, -1]]), 2)
    request = Request(Careless(), Range(3, 2), keys, heads=1, scale=1.0)
    assert request.mask(torch.device("cpu")).squeeze(1).tolist() == [[[False, True, True]] * 2, [[True, False, False]] * 2]


def test_dense_is_there_and_never_refuses() -> None:
    assert list(EXECUTORS)[-1] == "dense"
    for patterns in PATTERNS.values():
        assert "dense" in formers.explain(*inputs(3), patterns[0], "dense")


def test_an_unknown_way_is_refused_with_the_nearest() -> None:
    with refused("how='nonsense'"):
        formers.attend(*inputs(3), Full(), how="nonsense")
    with refused("how='dens'", "did you mean 'dense'?"):
        formers.attend(*inputs(3), Full(), how="dens")


def test_explain_names_what_runs_and_why_not_the_others() -> None:
    q, k, v = inputs(3, 0)
    told = formers.explain(q, k, v, Full())
    assert told.startswith("dense")
    assert "not sdpa, because there are no keys at all" in told
    assert formers.explain(*inputs(3), Causal()).startswith("sdpa")
