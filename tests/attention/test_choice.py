"""The executor is chosen once for each distinct request: not per layer, and not per token if positions do not matter."""

from __future__ import annotations

import sys

import pytest
import torch

import formers
from formers.attention.request import Request
from formers.core import Range
from formers.patterns import Causal, Strided

attend = sys.modules["formers.attention.attend"]
SIZES = dict(vocab=16, dim=16, heads=2, layers=3, length=64)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that an executor is chosen for."""
    made: list[Request] = []
    choose = attend.choose

    def counted(request: Request, *rest: object) -> object:
        made.append(request)
        return choose(request, *rest)

    monkeypatch.setattr(attend, "choose", counted)
    monkeypatch.setattr(attend, "_CHOSEN", {})
    return made


def test_layers_share_one_choice(choices: list[Request]) -> None:
    model = formers.create("decoder", **SIZES)
    tokens = torch.randint(16, (2, 12))
    model(tokens)
    assert len(choices) == 1
    model(tokens)
    assert len(choices) == 1
    model(tokens[:, :7])
    assert len(choices) == 2
    with torch.no_grad():
        model(tokens)
    assert len(choices) == 3


@torch.no_grad()
def test_tokens_of_a_causal_decoder_share_one_choice(choices: list[Request]) -> None:
    model = formers.create("decoder", **SIZES).eval()
    state = model(torch.randint(16, (2, 5))).state
    choices.clear()
    for _ in range(4):
        state = model(torch.randint(16, (2, 1)), state=state).state
    assert len(choices) == 1


@torch.no_grad()
def test_a_pattern_that_reads_some_keys_is_asked_once_a_token(choices: list[Request]) -> None:
    model = formers.create("sparse-transformer", **SIZES, stride=4, summary=1, use="merged").eval()
    state = model(torch.randint(16, (2, 20))).state
    choices.clear()
    for tokens in range(1, 5):
        state = model(torch.randint(16, (2, 1)), state=state).state
        assert len(choices) == tokens


@torch.no_grad()
def test_rows_of_different_lengths_share_one_choice(choices: list[Request]) -> None:
    model = formers.create("decoder", **SIZES).eval()
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    state = model(torch.randint(16, (2, 5)), mask=mask, state=model.initial_state(2)).state
    choices.clear()
    model(torch.randint(16, (2, 1)), state=state)
    assert len(choices) == 1


def test_a_signature_tells_apart_what_a_choice_depends_on() -> None:
    q, request = torch.zeros(2, 2, 8, 4), Request(Causal(), Range(0, 8), Range(0, 8), 2, 0.5)
    changed = [
        request,
        request._replace(pattern=Strided(stride=4)),
        request._replace(keys=Range(1, 8)),
        request._replace(dropout=0.1),
        request._replace(valid=torch.ones(2, 8, dtype=torch.bool)),
        request._replace(first=torch.zeros(2, 8, dtype=torch.int64)),
        request._replace(bias=torch.zeros(1, 1, 8, 8)),
    ]
    found = [attend.signature(each, q, q, q) for each in changed]
    found += [attend.signature(request, x, x, x) for x in (q.double(), q[:1], q.clone().requires_grad_(), q.to("meta"))]
    assert len(set(found)) == len(found)


def test_one_query_asks_its_pattern_which_keys_it_reads() -> None:
    q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 30, 4)
    for pattern, same in ((Causal(), True), (Strided(stride=4), False)):
        found = [attend.signature(Request(pattern, Range(t, 1), Range(0, t + 1), 1, 0.5), q, k[:, :, : t + 1], k) for t in (20, 21)]
        assert (found[0] == found[1]) is same
