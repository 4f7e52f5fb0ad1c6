"""`formers bench pondering` measures what it says: tokens that halt at different steps, half of the most in the mean."""

from __future__ import annotations

import json

import torch
from typer.testing import CliRunner

from formers.bench import pondering
from formers.cli.bench import app
from formers.family import spec


def test_tokens_take_the_steps_that_are_wanted():
    torch.manual_seed(0)
    plain = spec("universal-transformer", preset=None, causal=False, vocab=20, dim=64, heads=2, steps=6, hidden=96, length=16)
    model, tokens = pondering.halting_model(plain, 6), torch.randint(20, (4, 16))
    mean, different = pondering.set_mean(model, tokens, 3.0, tolerance=0.2)
    assert abs(mean - 3.0) <= 0.2
    assert different > 1


def test_every_limit_is_measured(monkeypatch):
    for name, value in {"DIMS": (64,), "ROWS": 4, "LENGTH": 32, "TRAINED": {**pondering.TRAINED, "dim": 16, "length": 32}}.items():
        monkeypatch.setattr(pondering, name, value)
    monkeypatch.setattr(pondering, "LIMITS", {})
    done = CliRunner().invoke(app, ["pondering", "--rounds", "1", "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    for kind in pondering.CAUSAL:
        assert abs(facts[f"{kind}_64_steps"] - 6) < 0.1
        assert facts[f"{kind}_64_different_steps"] > 1
        assert facts[f"{kind}_64_masked"] > 0 < facts[f"{kind}_64_shared"]
    assert facts["training"] > 0
