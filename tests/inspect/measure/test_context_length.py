"""The relative effective context length: the equations, counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

import formers
from formers.inspect.draw.context_length import context_panels, context_words
from formers.inspect.measure.context_length import Contexts, context_facts, context_losses, relative_gain
from helpers import close

STREAM = torch.randint(64, (60,), generator=torch.Generator().manual_seed(0))
SIZES = dict(vocab=64, dim=16, heads=2, layers=2, length=8)


def alone(model, t, context):
    """The loss of token t with so many tokens before it, in one pass."""
    with torch.no_grad():
        return -model(STREAM[None, t - context : t]).logits[0, -1].log_softmax(-1)[STREAM[t]]


def test_every_token_has_just_the_context_that_is_asked_for():
    places, contexts = torch.tensor([30, 41, 59]), [1, 5, 8]
    for name, options in (("decoder", {}), ("transformer-xl", {"memory": 8})):
        model = formers.create(name, **SIZES, **options).double().eval()
        found = context_losses(model, STREAM, places, contexts, size=2)
        close(found, torch.stack([torch.stack([alone(model, int(t), c) for t in places]) for c in contexts]))


def test_a_memory_reads_a_longer_context_in_segments_and_others_have_no_longer_one():
    places = torch.tensor([30, 59])
    model = formers.create("transformer-xl", memory=1000, **SIZES).double().eval()
    close(context_losses(model, STREAM, places, [11, 24])[1], torch.stack([alone(model, int(t), 24) for t in places]))
    short = formers.create("transformer-xl", memory=3, **SIZES).double().eval()
    assert not torch.allclose(context_losses(short, STREAM, places, [24])[0], torch.stack([alone(short, int(t), 24) for t in places]))
    decoder = formers.create("decoder", **SIZES).double().eval()
    found = context_losses(decoder, STREAM, places, [8, 16, 24])
    assert found[1].equal(found[0])
    assert found[2].equal(found[0])


def test_the_gain_is_that_of_the_paper():
    generator = torch.Generator().manual_seed(1)
    short, long = (torch.rand(3, 40, generator=generator, dtype=torch.float64) * 5 for _ in range(2))
    for top in (0.1, 0.5, 1.0):
        b = [min(float(short[i, t]) for i in range(3)) for t in range(40)]
        hardest = sorted(range(40), key=lambda t: -b[t])[: round(40 * top)]
        for i in range(3):
            same = math.exp(sum(min(b[t], float(short[i, t])) for t in hardest) / len(hardest))
            more = math.exp(sum(min(b[t], float(long[i, t])) for t in hardest) / len(hardest))
            assert float(relative_gain(short, long, top)[i]) == pytest.approx((same - more) / same, abs=1e-12)


def test_one_model_counts_what_it_loses_too():
    short, long = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[2.0, 2.0]]).double()
    assert float(relative_gain(short, long, 1.0)) == pytest.approx(1 - math.exp(0.5))
    assert float(relative_gain(short.expand(2, 2), long.expand(2, 2), 1.0)[0]) == 0.0


def test_a_length_is_the_first_context_that_one_more_step_does_not_help():
    nats = torch.tensor([[3.0, 2.0, 1.0, 1.0], [3.0, 2.995, 1.0, 0.9], [3.0, 2.0, 1.0, 0.0]]).double()[:, :, None].expand(-1, -1, 10)
    found = Contexts(["a", "b", "c"], [16, 32, 48, 64], nats, True, [None, None, None])
    assert found.lengths(1.0) == [48, 16, None]
    assert found._replace(limits=[40, 40, 40]).lengths(1.0) == [40, 16, None]
    assert found.losses()[0].tolist() == pytest.approx([3 / math.log(2), 2 / math.log(2), 1 / math.log(2), 1 / math.log(2)])
    facts = context_facts(found, [0.1, 1.0])
    assert [each["effective_context_length"] for each in facts["runs"][0]["tops"]] == [48, 48]
    assert "group of 3 runs" in context_words(found)
    assert "Plain effective context length of one run" in context_words(found._replace(names=["a"], nats=nats[:1]))
    losses, gains = context_panels(found, 0.5)
    assert losses.curves[0].x == [16, 32, 48, 64]
    assert gains.level == 0.01
