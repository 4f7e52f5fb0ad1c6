"""The next token: the distribution is that of the equations, and draws follow it."""

from __future__ import annotations

import itertools

import torch

from formers.core.devices import Capabilities, assume_capabilities
from formers.generation import Options
from formers.generation.choose import BLOCK, Draws, choose, penalised, probabilities, to_device, uniforms
from helpers import close, refused, sweep

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]], dtype=torch.float64)


def numbers(count: int, *keys: int | str) -> torch.Tensor:
    """The first random numbers of some keys."""
    return torch.cat(list(itertools.islice(uniforms(*keys), -(-count // BLOCK))))[:count]


def kept(**options) -> list[int]:
    """The tokens that the options leave of LOGITS."""
    return (probabilities(LOGITS, Options(**options)) > 0).nonzero()[:, 1].tolist()


def test_probabilities_are_those_of_the_equation():
    close(probabilities(LOGITS, Options(temperature=0.5)), (LOGITS / 0.5).softmax(-1))
    close(probabilities(LOGITS, Options(top_k=2))[:, :2], LOGITS[:, :2].softmax(-1))
    close(probabilities(LOGITS, Options(top_k=99, top_p=1.0, min_p=0.0)), LOGITS.softmax(-1))


def test_what_is_left_of_the_distribution():
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.7) == [0, 1], "0.64 is too little, 0.87 is the first that is enough"
    assert kept(top_p=1e-9) == [0]
    assert (probabilities(torch.zeros(1, 4), Options(top_p=0.5)) > 0).sum() == 2, "two quarters are enough for a half"
    assert kept(min_p=0.1) == [0, 1, 2], "exp(-2) of the likeliest is 0.135, exp(-3) is 0.05"
    assert kept(top_k=3, min_p=0.2) == [0, 1]
    assert kept(top_k=3, top_p=0.7) == [0, 1], "the share is one of what the first cut left"


def test_of_equal_tokens_exactly_as_many_are_left_as_were_asked_for():
    even = torch.zeros(2, 7)
    assert (probabilities(even, Options(top_k=3)) > 0).sum(-1).tolist() == [3, 3]
    draws = Draws([uniforms(0), uniforms(1)], even.device)
    assert choose(even, Options(top_k=1, temperature=0.7), draws.next()).tokens == [0, 0]


def test_a_temperature_near_0_takes_the_likeliest():
    logits = torch.randn(5, 9)
    draws = Draws([uniforms(i) for i in range(5)], logits.device)
    assert choose(logits, Options(temperature=1e-40), draws.next()).tokens == logits.argmax(-1).tolist()
    assert choose(logits, Options(temperature=0.0), None).tokens == logits.argmax(-1).tolist()


@sweep("options", [Options(), Options(temperature=2.0, top_k=4), Options(top_p=0.9, min_p=0.05)])
def test_draws_follow_the_distribution(options):
    rows = 20_000
    u = numbers(rows, 3)[:, None]
    drawn = choose(LOGITS.expand(rows, 5), options, u)
    share = torch.bincount(drawn.ids, minlength=5) / rows
    wanted = probabilities(LOGITS, options)[0]
    assert share.double().allclose(wanted, atol=0.015)
    assert share[wanted == 0].sum() == 0


def test_the_ends_of_the_interval_never_draw_what_is_left_out():
    options = Options(top_k=2)
    for u in (0.0, 1 - 2**-53):
        for logits in (LOGITS, LOGITS.flip(1)):
            chosen = choose(logits, options, torch.tensor([[u]], dtype=torch.float64))
            assert probabilities(logits, options)[0, chosen.ids] > 0


def test_the_repetition_penalty_is_that_of_its_equation():
    seen = torch.tensor([[True, False, True, True, False]])
    close(penalised(LOGITS, seen, 2.0), torch.tensor([[1.0, 1.0, 0.0, -2.0, -2.0]], dtype=torch.float64))
    assert choose(LOGITS, Options(temperature=0, repetition_penalty=3.0), None, seen).tokens == [1]


def test_rows_draw_from_numbers_of_their_own():
    first = numbers(100, 5, "a", 0)
    assert first.equal(numbers(100, 5, "a", 0))
    assert not first.equal(numbers(100, 5, "a", 1))
    assert ((first >= 0) & (first < 1)).all()


def test_random_numbers_of_a_row_do_not_depend_on_other_rows():
    draws = Draws([uniforms(i) for i in range(3)], torch.device("cpu"))
    steps = [draws.next() for _ in range(BLOCK - 2)]
    draws.select([2, 0])
    later = [draws.next() for _ in range(5)]
    assert torch.cat([each[2] for each in steps] + [each[0] for each in later]).equal(numbers(BLOCK + 3, 2))
    assert torch.cat([each[0] for each in steps] + [each[1] for each in later]).equal(numbers(BLOCK + 3, 0))


def test_a_device_without_float64_never_draws_1():
    nearly = torch.tensor([0.25, 1 - 2**-53], dtype=torch.float64)
    with assume_capabilities("cpu", Capabilities(float64=False)):
        found = to_device(nearly, nearly.device)
    assert found.dtype == torch.float32
    assert found[0] == 0.25
    assert found[1] < 1


@sweep("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_reported(temperature):
    with refused("not finite"):
        choose(torch.tensor([[0.0, float("nan")]]), Options(temperature=temperature), torch.full((1, 1), 0.5))


@sweep("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_reported_off_the_host(temperature):
    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    with assume_capabilities("cpu", Capabilities()), refused("not finite"):
        choose(logits, Options(temperature=temperature), torch.full((2, 1), 0.5))


@sweep(("options", "words"), [
        ({"temperature": -0.1}, "temperature=-0.1"), ({"temperature": float("nan")}, "temperature=nan"), ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"), ({"top_p": 1.1}, "top_p=1.1"), ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"min_p": -0.1}, "min_p=-0.1"), ({"min_p": 1.5}, "min_p=1.5"), ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"stop": ""}, "empty stop"), ({"stop": ("a", "")}, "empty stop"), ({"samples": 0}, "samples=0"), ({"beams": 0}, "beams=0"),
        ({"beams": 2, "samples": 3}, "samples"), ({"beams": 2, "length_penalty": -1.0}, "length_penalty=-1.0"),
        ({"beams": 2, "top_k": 3}, "leave out top_k"), ({"beams": 2, "temperature": 0.5}, "leave out temperature=0.5"),
        ({"top_q": 1}, "did you mean"),
    ])  # fmt: skip
def test_bad_options_are_refused(options, words):
    with refused(words):
        Options(**options)
