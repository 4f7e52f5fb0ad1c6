"""Agents side by side: the table, what counts as solved, and runs that are there."""

from __future__ import annotations

import numpy as np

from formers.bench.agents import band, cells, compare_agents, markdown, panel, row
from formers.cli.options import parse_set
from formers.family.variants import variant


def test_agents_are_compared(tmp_path):
    sizes = {"dim": 16, "heads": 2, "length": 8, "environments": 8, "epochs": 1, "eval_episodes": 8}
    variants = [variant(text, parse_set) for text in ("gtrxl", "gtrxl:memory=1")]
    said: list[str] = []
    found = compare_agents(variants, "tmaze:1", tmp_path, sizes, 4096, [0, 1], -0.5, "return", said.append)
    assert [r["variant"] for r in found["rows"]] == ["gtrxl", "gtrxl:memory=1"]
    assert all(r["solved"] == 2 for r in found["rows"])
    again = compare_agents(variants, "tmaze:1", tmp_path, sizes, 4096, [0, 1], 2.0, "return", said.append)
    assert sum("seed" in line for line in said) == 4, "finished runs are not trained again"
    assert all(r["solved"] == 0 for r in again["rows"])
    assert "| `gtrxl` | 2/2 |" in markdown(found, "formers compare ...")
    drawn = panel(found).curves
    assert len(drawn) == 2
    for curve in drawn:
        assert curve.band is not None
        assert all(low <= y <= high for low, y, high in zip(curve.band[0], curve.y, curve.band[1], strict=True))


def test_the_band_of_a_curve_is_the_interval_of_its_mean():
    assert band(np.ones((1, 3))) is None
    heights = np.random.default_rng(0).normal(size=(400, 2)) + np.array([0.0, 5.0])
    found = band(heights)
    assert found is not None
    wide = 1.96 * heights.std(axis=0) / 20
    assert np.allclose(found[0], heights.mean(axis=0) - wide, atol=0.02)
    assert np.allclose(found[1], heights.mean(axis=0) + wide, atol=0.02)


def test_a_row_with_a_run_that_diverged():
    good = {"diverged": False, "solved": 100, "solve_seconds": 1.5, "held": True, "mean_return": 1.0}
    bad = {"diverged": True, "solved": None, "held": False, "mean_return": None}
    assert cells(row("a", [good, bad])) == ("a", "1/2", "1/2", "1/2", "100", "1.5", "1.000", "1.000")
    assert cells(row("a", [bad]))[4:] == ("", "", "", "")
