"""Metrics are read once and then on; curves are thinned without losing their shape; gaps stay gaps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from formers.serve.metrics import MetricsFile, thinned
from helpers import sweep
from serving import make_run


def read(metrics: MetricsFile, path: Path) -> MetricsFile:
    for _ in metrics.read(path):
        pass
    return metrics


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    file = make_run(tmp_path, steps=5) / "metrics.jsonl"
    metrics = read(MetricsFile(10), file)
    assert metrics.lines == 5
    assert list(metrics.curves["loss"].value) == [1 / step for step in range(1, 6)]
    with file.open("a") as out:
        out.write('{"step": 6, "loss": 0.1, "sec')
    assert read(metrics, file).lines == 5  # half a line is no line
    with file.open("a") as out:
        out.write('onds": 9.5}\n')
    assert read(metrics, file).lines == 6
    assert (metrics.step, metrics.seconds) == (6, 9.5)
    assert list(metrics.curves["loss"].seconds)[-1] == 9.5


def test_a_file_that_was_cut_and_goes_on_is_read_again(tmp_path: Path) -> None:
    file = make_run(tmp_path, steps=9) / "metrics.jsonl"
    metrics = read(MetricsFile(10), file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]))
    assert len(read(metrics, file).curves["loss"].value) == 4
    file.write_text("".join(lines[:4]) + json.dumps({"step": 5, "loss": 7.0}) + "\n" + "".join(lines[5:]) * 3)  # longer than before
    assert list(read(metrics, file).curves["loss"].value)[4] == 7.0


def test_a_loss_that_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": null, "loss_word": "nan"}\n{"step": 3, "loss": 0.5, "batch": null}\n')
    metrics = read(MetricsFile(10), file)
    first, gap, last = metrics.curves["loss"].value
    assert (first, last) == (1.0, 0.5)
    assert math.isnan(gap)
    assert "batch" not in metrics.curves
    summary = metrics.summary()
    assert summary["last"] == 0.5
    assert summary["best"] == {"value": 0.5, "step": 3.0}


def test_samples_stand_at_their_step_and_the_last_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step, "prompt": "p", "sample": f"text {step}"}) + "\n" for step in range(1, 8)))
    samples = read(MetricsFile(3), file).samples
    assert [each["step"] for each in samples] == [5, 6, 7]
    assert samples[-1] == {"step": 7, "prompt": "p", "text": "text 7"}


@sweep("n", [1, 999, 1000, 1001, 10_000, 12_345])
def test_a_thinned_curve_keeps_its_ends_peaks_and_gaps(n: int) -> None:
    x = np.arange(n, dtype=np.float64)
    y = np.sin(x / 50) + np.random.default_rng(0).normal(size=n) / 10
    if n > 1000:
        y[n // 2] = 99.0
        y[n // 3] = -99.0
        y[n // 4 : n // 4 + 3] = np.nan
    left, kept = thinned(x, y, 1000)
    assert len(left) == len(kept) <= 1000
    assert (np.diff(left) > 0).all()
    assert left[-1] == n - 1
    assert np.nanmax(kept) == np.float32(np.nanmax(y))
    assert np.nanmin(kept) == np.float32(np.nanmin(y))
    assert np.isnan(kept).any() == (n > 1000)
    places = left.astype(int)
    np.testing.assert_array_equal(kept, y[places].astype(np.float32))
