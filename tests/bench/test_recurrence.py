"""`formers bench recurrence` measures what it says, with a full memory, and says how to get the peer where it is not there."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from formers.bench import recurrence
from formers.cli.bench import app
from helpers import one_sentence

SMALL = dict(vocab=20, dim=16, heads=2, layers=2, hidden=24, length=6, memory=8)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(recurrence, "SIZES", SMALL)


def test_ours_is_timed_beside_plain_scores_and_the_peer_is_named(small):
    done = CliRunner().invoke(app, ["recurrence", "--rounds", "1", "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert facts["ours_to_plain"] == pytest.approx(facts["ours_seconds"] / facts["plain_seconds"])
    assert set(recurrence.LIMITS) <= set(facts)
    if not recurrence.importable():
        assert facts["speedup"] is facts["memory_ratio"] is None
        assert "transformers>=4.57,<4.58" in facts["peer"]
        one_sentence(facts["peer"])


def test_what_is_not_measured_is_reported_and_does_not_fail(small, monkeypatch):
    monkeypatch.setattr(recurrence, "importable", lambda: False)
    monkeypatch.setattr(recurrence, "LIMITS", {**recurrence.LIMITS, "ours_to_plain": (0.0, 1e9)})
    done = CliRunner().invoke(app, ["recurrence", "--rounds", "1", "--check"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "not checked: speedup" in done.stderr


def test_a_step_reads_a_full_memory_and_learns(small, monkeypatch):
    monkeypatch.setitem(SMALL, "memory", 6)
    seen = []
    real = recurrence._our_loss
    monkeypatch.setattr(recurrence, "_our_loss", lambda model, state, *rest: seen.append((model, state)) or real(model, state, *rest))
    step = recurrence.fresh_step("ours")
    step()
    model, state = seen[0]
    assert state.steps[0][0].states.shape == (recurrence.BATCH, 6, 16)
    assert all(weight.grad is not None and torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_theirs_is_of_our_size_but_for_the_biases_of_its_softmax(small):
    if not recurrence.importable():
        pytest.skip("transformers has no TransfoXL from 5 on")
    ours = sum(p.numel() for p in recurrence.step_of("ours").args[0].param_groups[0]["params"])
    assert sum(p.numel() for p in recurrence.their_model().parameters()) == ours + SMALL["vocab"]
    recurrence.step_of("theirs")()
