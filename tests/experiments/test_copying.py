"""The bench of the duplication task: a line for each training, a column for each number of rounds, and what the claims make of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from formers.cli import bench as verbs
from formers.experiments import copying
from formers.experiments.copying import Copying, bench_copying, claims, train_model
from formers.model import respecified
from helpers import refused

TINY = Copying(words=3, symbols=4, dim=16, heads=2, chunk=2, steps=3, batch=2)
WORDS = ["copying", "--words", "3", "--symbols", "4", "--chunk", "2", "--steps", "2"]


def test_all_ways_have_the_same_weights():
    model, losses = train_model(TINY, 2)
    assert len(losses) == TINY.steps
    assert not model.training
    for rounds in copying.EVALUATED:
        other = respecified(model, TINY.spec(rounds))
        assert [p.data_ptr() for p in other.parameters()] == [p.data_ptr() for p in model.parameters()]


def test_a_training_is_a_function_of_its_seed():
    assert train_model(TINY, 1)[1] == train_model(TINY, 1)[1] != train_model(replace(TINY, seed=1), 1)[1]


def test_claims_are_the_worst_of_the_table():
    def line(trained, *right):
        return {"trained": trained, "accuracy": dict(zip(("full", "8", "4", "2", "1"), right, strict=True))}

    found = claims([line("full", 1.0, 0.95, 0.9, 0.8, 0.5), line("2", 0.9, 0.99, 0.98, 0.985, 0.9), line("1", 1.0, 1.0, 1.0, 1.0, 0.99)])
    assert found == pytest.approx({"lsh_8": 0.99, "full": 1.0, "least_step": -0.005, "least_gain": 0.01})


def test_the_verb_prints_a_line_for_each_training_and_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "ROWS", 4)
    picture = tmp_path / "copying.svg"
    result = CliRunner().invoke(verbs.app, [*WORDS, "--out", str(picture), "--check"])
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["trained", "with", "full", "8", "4", "2", "1", "other", "seconds"]
    assert [line.split()[0] for line in lines[1:5]] == ["full", "4", "2", "1"]
    assert result.exit_code == 1, "nobody learns to copy in two steps"
    assert "missed: lsh_8" in result.stderr
    assert picture.read_text().startswith("<?xml")
    facts = json.loads(CliRunner().invoke(verbs.app, [*WORDS, "--json"]).stdout)
    assert facts["setting"]["words"] == 3
    assert facts["length"] == 8
    assert set(copying.LIMITS) <= set(facts)


def test_no_steps_are_refused():
    with refused("steps=0"):
        bench_copying(replace(TINY, steps=0))
