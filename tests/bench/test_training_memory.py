"""The bench of training memory measures each way in a process of its own, draws both curves, and evaluates what is promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from formers.bench import training_memory as bench
from formers.bench.memory import Held, peak
from formers.cli.bench import app
from formers.inspect import draw_curves
from formers.residual import PreNorm, Reversible
from helpers import refused

SMALL = dict(vocab=256, dim=16, heads=2, hidden=32)
MIB = 1 << 20


def call(*words: str) -> str:
    done = CliRunner().invoke(app, ["memory", *words], catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of measuring, a plain step takes 1 MiB for each layer and 64 tokens, a checkpointed one a quarter; a reversible one none."""
    share = {"plain": 1.0, "checkpointing": 0.25, "reversible": 0.0}

    def held(make, way, member, options, depth, length):
        assert make is bench.fresh_step
        gradients = bench.weightless(bench.spec_of(way, member, options, depth, length)).parameter_count() * 4
        return Held(100 * MIB, 100 * MIB + gradients + int(MIB * (1 + share[way] * depth * length / 64)))

    monkeypatch.setattr(bench, "SIZES", SMALL)
    monkeypatch.setattr(bench, "held_memory", held)


def test_depths_are_measured_at_one_length_and_lengths_at_one_depth(counted: None) -> None:
    results = bench.bench_memory("decoder", {}, (1, 3), (64, 128))
    assert [(r["layers"], r["length"]) for r in results["rows"]][::3] == [(1, 64), (3, 64), (3, 128)]
    assert [r["way"] for r in results["rows"]][:3] == ["plain", "checkpointing", "reversible"]
    assert [r["bytes"] // MIB for r in results["rows"] if r["way"] == "plain"] == [2, 4, 7]
    deep, long = bench.panels(results)
    assert {curve.name: (curve.x, curve.y) for curve in deep.curves}["checkpointing"] == ([1.0, 3.0], [1.25, 1.75])
    assert {curve.name: (curve.x, curve.y) for curve in long.curves}["reversible"] == ([64.0, 128.0], [1.0, 1.0])
    drawn = draw_curves(deep).splitlines()
    assert drawn[-1].endswith("reversible")
    # x runs straight: a line that grows with depth is one, and half the depth stands in the middle.
    places = [line.find("a") for line in drawn[1:16] if "a" in line]
    assert places == sorted(places, reverse=True)
    usual = bench.bench_memory("decoder", {}, ways=["plain"])
    assert {r["length"] for r in usual["rows"] if r["layers"] == 24} == {bench.LENGTH}
    assert {r["layers"] for r in usual["rows"] if r["length"] == 8192} == {bench.DEPTH}


def test_each_way_is_the_same_model_but_for_how_layers_join() -> None:
    plain, checkpointed, reversible = (bench.spec_of(way, "decoder", {"dim": 16, "heads": 2}, 3, 32) for way in bench.WAYS)
    assert plain == checkpointed == reversible.replace(residual=PreNorm())
    assert reversible.residual == Reversible()
    assert (plain.depth.steps, plain.length) == (3, 32)


@pytest.mark.parametrize("way", bench.WAYS)
def test_a_fresh_step_learns_from_whole_rows(way: bench.Way, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = bench.build

    def looked(spec):
        model = real(spec)
        model.register_forward_pre_hook(lambda module, given: seen.append((module, given[0].shape)))
        return model

    monkeypatch.setattr(bench, "build", looked)
    monkeypatch.setattr(bench, "WARM", 8)
    step, threads = None, torch.get_num_threads()
    try:
        step = bench.fresh_step(way, "decoder", {"dim": 16, "heads": 2, "hidden": 32}, 2, 32)
        model = seen[0][0]
        assert all(weight.grad is None for weight in model.parameters())
        step()
    finally:
        torch.set_num_threads(threads)
    assert [shape for _, shape in seen] == [(1, 8), (1, 32)]
    assert model.stack.depth.checkpointing == (way == "checkpointing")
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.skipif(peak() is None, reason="this system does not tell")
def test_a_plain_step_is_measured() -> None:
    row = bench.row_of("plain", "decoder", {"dim": 16, "heads": 2, "hidden": 2048}, 1, 1024)
    # Hidden activations alone, before and behind the GELU: 2 x 1024 x 2048 floats.
    assert 16 * MIB < row["bytes"] < 100 * MIB
    assert row["process_bytes"] > row["bytes"] + row["gradients_bytes"]


def test_the_command_prints_draws_and_evaluates(counted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = call("--depth", "2", "--depth", "8", "--length", "64")
    assert "a step" in said
    assert "layers, at length 64" in said
    facts = json.loads(call("--depth", "2", "--length", "64", "--way", "reversible", "--set", "dim=32", "--json"))
    assert [row["way"] for row in facts["rows"]] == ["reversible"]
    assert facts["options"]["dim"] == 32
    pytest.importorskip("matplotlib")
    out = tmp_path / "memory.svg"
    assert str(out) in call("--depth", "2", "--depth", "8", "--length", "64", "--out", str(out))
    assert "<svg" in out.read_text()
    monkeypatch.setattr(bench, "LONG_MEMBER", "decoder")
    assert "depth ratio" in call("--check")
    monkeypatch.setattr(bench, "LIMITS", {**bench.LIMITS, "long_gigabytes": (0.0, 0.01)})
    done = CliRunner().invoke(app, ["memory", "--check"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "missed: long_gigabytes" in done.stderr


def test_what_cannot_be_measured_is_refused_before_anything_is(counted: None) -> None:
    with refused("--way revers", "reversible"):
        call("--way", "revers")
    with refused("--check", "leave --depth out"):
        call("--check", "--depth", "3")
    with refused("one depth and one length"):
        call("--depth", "2", "--length", "64", "--out", "memory.png")
    with refused("memory.pdf"):
        call("--out", "memory.pdf")
    with refused("dim=15"):
        call("--set", "dim=15")
    with refused("transformer", "no token of one"):
        bench.bench_memory("transformer", {}, (1,), (64,))
