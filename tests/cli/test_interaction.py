"""`formers show interaction` and `formers ablate`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from formers.cli import ablate, names, show
from formers.family.ablations import ABLATIONS
from helpers import refused, sweep

taking = typer.Typer()
taking.command()(ablate.ablate)
TINY = ("--set", "dim=16", "--set", "layers=1", "--set", "length=16", "--set", "batch=4", "--set", "final_batches=1", "--seeds", "1")


def run(app: typer.Typer, *words: str) -> Result:
    """The result of a command; an error that is not typer's own comes through."""
    return CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "80"})


def test_interaction_prints_a_table() -> None:
    lines = run(show.app, "interaction", "decoder:layers=1", "adaptive-span").stdout.splitlines()
    assert lines[0].split() == ["operations", "growth", "path", "mean", "growth"]
    decoder, spans = (next(line for line in lines if name in line).split() for name in ("decoder:layers=1", "adaptive-span"))
    assert decoder[2:] == ["O(1)", "0.00", "1", "1", "O(1)", "0.00"]
    assert spans[-2:] == ["O(n/16)", "1.00"]
    assert max(map(len, lines)) <= 80


def test_interaction_prints_json_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    lengths = [word for n in (16, 24, 40) for word in ("--length", str(n))]
    facts = json.loads(run(show.app, "interaction", "decoder:layers=1", *lengths, "--out", str(out), "--json").stdout)
    assert facts[0]["path"] == [1, 1, 1]
    assert facts[0]["lengths"] == [16, 24, 40]
    assert "<svg" in out.read_text()


@sweep(
    ("words", "said"),
    [
        (["decodr"], ["no member", "decodr"]),
        (["decoder", "--length", "16"], ["[16]", "three"]),
        (["decoder", "--out", "x.txt"], ["x.txt", ".svg"]),
        (["decoder:layer=2"], ["no option", "layers"]),
    ],
)
def test_interaction_refuses_in_one_sentence(words, said) -> None:
    with refused(*said):
        run(show.app, "interaction", *words)


def test_ablate_prints_writes_and_draws(tmp_path: Path) -> None:
    data = tmp_path / "text.txt"
    data.write_text("all work and no play makes jack a dull boy. " * 60)
    page, out = tmp_path / "pages" / "a.md", tmp_path / "a.svg"
    page.parent.mkdir()
    words = ("--data", str(data), "--steps", "2", *TINY, "--without", "norm")
    shown = run(taking, *words).stdout
    assert [line.split()[0] for line in shown.splitlines()[2:4]] == ["nothing", "norm"]
    facts = run(taking, *words, "--page", str(page), "--out", str(out), "--json").stdout.splitlines()
    assert [row["without"] for row in json.loads(facts[-1])["rows"]] == ["nothing", "norm"]
    assert "](../a.svg)" in page.read_text()
    assert "<svg" in out.read_text()
    with refused("no ablation 'nrm'"):
        run(taking, *words, "--without", "nrm")
    with refused("a.txt"):
        run(taking, *words, "--page", "a.txt")


def test_a_tab_knows_the_ablations() -> None:
    assert names.ablations() == list(ABLATIONS)
