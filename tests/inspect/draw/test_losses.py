"""Losses over the steps of a training: read from the run, joined in bins, refused where there are none."""

from __future__ import annotations

import json
import math

import pytest

from formers.inspect.draw.losses import learning_panel, smooth
from formers.inspect.measure.losses import training_losses
from helpers import refused


@pytest.fixture
def run(tmp_path):
    lines = [{"step": s, "loss": 8.0 / s, "norm": 1.0} for s in range(1, 21)]
    lines.insert(10, {"step": 10, "valid_loss": 99.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


def test_the_losses_of_steps_are_read_and_no_others(run):
    assert training_losses(run) == [8.0 / s for s in range(1, 21)]


def test_bins_hold_every_step_once():
    curve = smooth("a", [float(s) for s in range(1, 21)])
    assert curve.x == pytest.approx(curve.y), "the mean of the steps in a bin is its middle"
    assert curve.x[:3] == [1.0, 2.0, 3.0]
    assert curve.x == sorted(curve.x)
    flat = smooth("b", [3.0] * 1000)
    assert set(flat.y) == {3.0}
    assert len(flat.x) < 40
    assert smooth("c", [5.0]).y == [5.0]


def test_a_panel_is_in_bits(run):
    panel = learning_panel({"mine": run})
    assert panel.curves[0].name == "mine"
    assert panel.curves[0].y[0] == pytest.approx(8.0 / math.log(2))


def test_what_is_no_run_is_refused(tmp_path):
    with refused("metrics.jsonl", "folder of a training"):
        training_losses(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "valid_loss": 1.0}\n')
    with refused("no step"):
        training_losses(tmp_path)
