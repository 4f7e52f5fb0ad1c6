"""The deep character Transformer's recipe: the paper's sizes, in training and at inference, and what its options stand for."""

from __future__ import annotations

import torch

import formers
from formers.family import MEMBERS
from formers.feedforward import Dense
from formers.heads import Auxiliary, LanguageModel
from formers.inspect import member_facts
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.parameters import weightless
from formers.position import PerLayer, Sinusoidal
from formers.residual import PostNorm
from formers.training.config import Settings
from helpers import refused, sweep

TINY = {"vocab": 11, "dim": 16, "heads": 2, "layers": 3, "length": 16}


@sweep(("preset", "layers", "training", "inference"), [("base", 64, 235, 219), ("t12", 12, 44, 41)])
def test_presets_have_the_papers_number_of_parameters(preset, layers, training, inference):
    model = weightless(formers.spec("character-transformer", preset=preset, vocab=256))
    assert round(model.parameter_count() / 1e6) == training
    assert round(model.parameter_count(training=False) / 1e6) == inference
    spare = model.parameter_count() - model.parameter_count(training=False)
    assert spare == ((layers - 1) * 2 + 1) * 512 * 256, "one classifier for each layer and target, but that of the language model itself"
    facts = member_facts("character-transformer", preset=preset)["parameters"]
    assert facts["total"] - facts["inference"] == facts["parts"]["training alone"] == spare


def test_it_reads_like_the_paper():
    spec = formers.spec("character-transformer", preset="base", vocab=256)
    assert spec.position == PerLayer()
    assert spec.residual == PostNorm()
    assert spec.head == Auxiliary(tied=False, intermediate="cut-off", targets=2, future_weight=0.5)
    assert spec.feedforward == Dense(hidden=2048, activation="relu", dropout=0.55)
    settings = Settings(**MEMBERS["character-transformer"].training["base"])
    assert (settings.optimizer, settings.momentum, settings.learning_rate, settings.batch) == ("momentum", 0.99, 0.003, 16)


def test_costs_of_training_have_the_auxiliary_losses_and_those_of_inference_have_not():
    costs = [Costs(formers.spec("character-transformer", **TINY, auxiliary=on)).at(16) for on in (True, False)]
    assert costs[0].forward.total == costs[1].forward.total
    assert costs[0].training.forward.flops.pop("training alone") == 5 * 2 * 16 * 16 * 11
    assert costs[0].training.forward.flops == costs[1].training.forward.flops


def test_with_and_without_auxiliary_losses():
    assert formers.spec("character-transformer", **TINY, auxiliary=False).head == LanguageModel()
    assert formers.spec("character-transformer", **TINY, intermediate="decay").head == Auxiliary(intermediate="decay")
    assert formers.spec("character-transformer", **TINY, targets=3, position="sinusoidal").position == Sinusoidal()
    with refused("targets=3", "auxiliary=false"):
        formers.spec("character-transformer", **TINY, auxiliary=False, targets=3)
    with refused("intermediate='slow'", "cut-off"):
        formers.spec("character-transformer", **TINY, intermediate="slow")


def test_activations_are_dropped_in_training_alone():
    model = formers.create("character-transformer", **TINY, activation_dropout=0.5, auxiliary=False)
    tokens = torch.randint(11, (2, 9))
    assert not model(tokens).logits.equal(model(tokens).logits)
    model.eval()
    assert model(tokens).logits.equal(model(tokens).logits)
