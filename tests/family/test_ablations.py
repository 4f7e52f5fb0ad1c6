"""Every ablation changes what its name says, and nothing else; what is not there cannot be taken away."""

from __future__ import annotations

import torch

import formers
from formers.family.ablations import ABLATIONS
from formers.feedforward import SeparableConv
from formers.model import build, respecified
from formers.patterns import Strided
from formers.position import Coordinate
from formers.residual import Bare
from helpers import refused, sweep

WHOLE = formers.spec("decoder", vocab=11, dim=16, heads=4, layers=2, hidden=24, length=16)
UNIVERSAL = formers.spec("universal-transformer", vocab=11, dim=16, heads=4, steps=2, hidden=24, length=16)
CHANGED = {
    "positions": {"position"},
    "feed-forward": {"feedforward"},
    "mask": {"pattern", "head"},  # the head says that it does not write, with the same weights and the same loss
    "residual": {"residual"},
    "norm": {"residual"},
    "scaling": {"attention"},
    "heads": {"heads", "head_dim", "value_dim"},
}


@sweep("name", ABLATIONS)
@sweep("norm", ["pre", "post"])
def test_an_ablation_changes_what_it_names(name, norm):
    whole = formers.spec("decoder", vocab=11, dim=16, heads=4, layers=2, hidden=24, length=16, norm=norm)
    spec = ABLATIONS[name](whole)
    assert {field for field in type(whole).model_fields if getattr(spec, field) != getattr(whole, field)} == CHANGED[name]
    assert ABLATIONS[name](whole) == spec
    tokens = torch.randint(11, (2, 9))
    out = build(spec)(tokens[:, :-1], targets=tokens[:, 1:])
    out.loss.backward()
    assert torch.isfinite(out.loss)


@sweep("name", ["mask", "residual", "norm", "scaling"])
@sweep("norm", ["pre", "post"])
def test_what_stays_begins_with_the_same_weights(name, norm):
    whole = formers.spec("decoder", vocab=11, dim=16, heads=4, layers=3, hidden=24, length=16, norm=norm)
    started = []
    for spec in (whole, ABLATIONS[name](whole)):
        torch.manual_seed(0)
        started.append(build(spec).state_dict())
    before, after = started
    assert set(after) <= set(before)
    norms = {key for key in before if ".norm." in key or key.startswith("stack.final")}
    assert set(before) - set(after) == (norms if name == "norm" else set())
    for key, value in after.items():
        assert value.equal(before[key]), key


@sweep("name", ABLATIONS)
def test_nothing_is_taken_away_twice(name):
    with refused("decoder has", "leave this ablation out"):
        ABLATIONS[name](ABLATIONS[name](WHOLE))


def test_what_cannot_be_taken_apart_is_refused():
    with refused("Bare"):
        ABLATIONS["norm"](WHOLE.replace(residual=Bare()))
    with refused("causal mask"):
        ABLATIONS["mask"](WHOLE.replace(pattern=Strided(stride=4)))
    with refused("no positional encoding"):
        ABLATIONS["positions"](formers.spec("transformer-xl", vocab=11))
    for ordered in (
        formers.spec("word-window", vocab=11),
        formers.spec("rnn", vocab=11),
        UNIVERSAL.replace(feedforward=SeparableConv(hidden=8)),
    ):
        with refused("an order in its weights"):
            ABLATIONS["mask"](ordered)


def test_the_step_is_encoded_without_positions_too():
    spec = ABLATIONS["positions"](UNIVERSAL.replace(position=Coordinate(step="learned", offset=3)))
    assert spec.position == Coordinate(place="none", step="learned")
    with refused("no positional encoding"):
        ABLATIONS["positions"](spec)


def test_one_head_has_as_many_parameters():
    whole = WHOLE.replace(head_dim=3, value_dim=5)
    counts = [build(spec).parameter_count() for spec in (whole, ABLATIONS["heads"](whole))]
    assert counts[0] == counts[1]


def test_without_the_mask_a_token_sees_the_next_and_is_evaluated_without_it():
    torch.manual_seed(0)
    model = build(ABLATIONS["mask"](WHOLE)).double().eval()
    honest = respecified(model, WHOLE).eval()
    tokens = torch.randint(11, (1, 8))
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 11
    assert not model(tokens).logits[:, :5].equal(model(other).logits[:, :5])
    assert honest(tokens).logits[:, :5].equal(honest(other).logits[:, :5])
    assert honest.embedding.weight is model.embedding.weight
