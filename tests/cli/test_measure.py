"""`formers show losses` and `formers show context`, from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import formers
from formers.cli.app import app


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "a.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    small = dict(dim=16, heads=2, layers=1, length=16, steps=2, quiet=True, batch=4)
    formers.train("decoder", text, folder / "decoder", **small)
    formers.train("transformer-xl", text, folder / "xl", memory=16, **small)
    formers.train("encoder", text, folder / "encoder", **small)
    formers.train("decoder", text, folder / "characters", tokens="characters", **small)
    return folder


def run(*words):
    return CliRunner().invoke(app, ["show", *map(str, words)])


def test_losses_of_runs_with_and_without_a_memory(runs, tmp_path):
    drawn = run("losses", runs / "decoder", runs / "xl", "--limit", 200)
    assert drawn.exit_code == 0, drawn.output
    assert "bits per byte" in drawn.stdout
    assert "with its memory of 16" in drawn.stdout
    said = run("losses", runs / "decoder", runs / "xl", "--limit", 200, "--json", "--out", tmp_path / "a.png")
    facts = json.loads(said.stdout.splitlines()[-1])
    assert [len(each["by_position"]) for each in facts] == [16, 16, 16]
    assert facts[1]["tokens"] == facts[2]["tokens"]
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_context_of_a_group_and_of_one(runs, tmp_path):
    group = run("context", runs / "decoder", runs / "xl", "--tokens", 8, "--step", 8, "--longest", 32)
    assert group.exit_code == 0, group.output
    assert "group of 2 runs" in " ".join(group.stdout.split())
    assert "hardest 10%" in group.stdout
    one = run("context", runs / "xl", "--tokens", 8, "--top", 0.5, "--json", "--out", tmp_path / "a.svg")
    facts = json.loads(one.stdout.splitlines()[-1])
    assert facts["contexts"] == list(range(8, 65, 8))  # twice what the model sees at once
    assert [each["top"] for each in facts["runs"][0]["tops"]] == [0.5]
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["losses", "encoder"], "language model"),
        (["context", "encoder"], "language model"),
        (["context", "decoder", "characters"], "other tokens"),
        (["context", "decoder", "--step", "64", "--longest", "64"], "smaller step"),
        (["context", "decoder", "--longest", "100000"], "longer than the data"),
        (["losses", "decoder", "--out", "a.txt"], "a.txt"),
    ],
)
def test_mistakes_are_reported(runs, words, says):
    done = run(words[0], *(runs / word if (runs / word).is_dir() else word for word in words[1:]))
    assert done.exit_code != 0
    assert says in str(done.exception)
