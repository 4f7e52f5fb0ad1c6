"""The same weights with another spec."""

from __future__ import annotations

import torch

import formers
from formers.memory import Recurrence
from formers.model import respecified
from formers.patterns import Local
from helpers import refused


def xl(**options):
    return formers.create("transformer-xl", vocab=11, dim=16, heads=2, layers=2, length=8, memory=4, **options)


def test_weights_are_shared_and_nothing_else_is_moved():
    model = xl().train()
    model.embedding.weight.requires_grad_(False)
    torch.manual_seed(3)
    other = respecified(model, model.spec.replace(memory=Recurrence(length=32), pattern=Local(window=32)))
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert drawn == torch.rand(())
    mine, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(mine[name] is theirs[name] for name in mine)
    assert not other.embedding.weight.requires_grad
    assert other.training
    assert other.spec.memory == Recurrence(length=32)
    assert respecified(model, model.spec) is model


def test_what_has_been_respecified_computes_as_if_it_had_been_built_so():
    model = xl().double().eval()
    spec = model.spec.replace(score=model.spec.score.replace(clamp=3))
    built = formers.build(spec).double().eval()
    built.load_state_dict(model.state_dict())
    tokens = torch.randint(11, (2, 8))
    with torch.no_grad():
        assert respecified(model, spec)(tokens).logits.equal(built(tokens).logits)
        assert not built(tokens).logits.equal(model(tokens).logits)


def test_other_weights_are_refused():
    model = xl()
    with refused("'embedding.weight'", "(11, 16)", "(12, 16)"):
        respecified(model, model.spec.replace(vocab=12))
    with refused("nothing"):
        respecified(model, model.spec.replace(score=model.spec.score.replace(untied=True)))
