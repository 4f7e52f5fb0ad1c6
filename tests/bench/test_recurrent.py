"""`formers bench recurrent` times two models that compute the same."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from formers.bench import recurrent
from formers.cli.bench import app


def test_both_sides_compute_the_same_and_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "SIZES", dict(vocab=20, dim=8, layers=2, length=6))
    done = CliRunner().invoke(app, ["recurrent", "--rounds", "1", "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert set(recurrent.LIMITS) <= set(facts)
    assert facts["difference"] < 1e-5
    assert facts["training_ours_to_torch"] == pytest.approx(facts["training_ours_seconds"] / facts["training_torch_seconds"])
