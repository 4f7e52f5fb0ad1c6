"""`formers explain` and `formers bench explain`: what they print and refuse."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from commands import command
from formers.bench import explain as bench
from formers.cli import bench as bench_verbs
from formers.cli.explain import explain
from helpers import refused

verb = typer.Typer()
verb.command()(explain)
SMALL = ["--set", "layers=2", "--set", "dim=32", "--set", "length=48", "--length", "48"]


def run(*words, app=verb):
    return CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "80"})


def test_a_member_is_explained():
    text = run("decoder", *SMALL).stdout
    facts = json.loads(run("decoder", *SMALL, "--vocab", "99", "--batch", "2", "--json").stdout)
    assert "Stacked(layers=2)" in text
    assert "training at length 48" in text
    assert facts["batch"] == 2
    assert facts["stacks"][-1]["sizes"]["vocab"] == 99
    assert [row["length"] for row in facts["lengths"]] == [48]


def test_several_members_stand_side_by_side():
    text = run("decoder", "rnn", "--length", "48").stdout
    assert "decoder" in text.splitlines()[0]
    assert "rnn" in text.splitlines()[0]
    facts = json.loads(run("decoder", "rnn", "--length", "48", "--json").stdout)
    assert [fact["name"] for fact in facts["members"]] == ["decoder", "rnn"]
    with refused("twice"):
        run("decoder", "decoder")
    with refused("rnn", "hidden"):
        run("decoder", "rnn", "--set", "hidden=64")


def test_mistakes_are_one_sentence():
    with refused("decodr", "did you mean 'decoder'"):
        run("decodr")
    with refused("length=0"):
        run("decoder", "--length", "0")
    with refused("name=value"):
        run("decoder", "--set", "layers")


def test_a_terminal_without_unicode_gets_ascii():
    done = command("explain", "decoder", *SMALL, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_bench_prints_predicted_beside_measured(monkeypatch):
    monkeypatch.setattr(bench, "MEMBERS", ("decoder",))
    result = run("explain", "--length", "64", "--check", app=bench_verbs.app)
    assert result.exit_code == 0
    assert "training peak" in result.stdout
    facts = json.loads(run("explain", "--length", "64", "--json", app=bench_verbs.app).stdout)
    assert {row["what"] for row in facts["rows"]} >= {"forward FLOPs", "training FLOPs", "activations", "training peak", "state"}
    for row in facts["rows"]:
        assert row["ratio"] == pytest.approx(row["predicted"] / row["measured"])
        assert 0.95 <= row["ratio"] <= 1.05
