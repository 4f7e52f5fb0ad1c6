"""`formers show`, `formers members` and `--set`: what they print, write and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

import formers
from commands import command
from formers.cli import members, show
from formers.cli.options import parse_set
from formers.inspect import draw_pattern
from formers.patterns import Local
from helpers import refused, sweep

family = typer.Typer()
family.command()(members.members)


def run(app: typer.Typer, *words: str) -> Result:
    """The result of a command; an error that is not typer's own comes through."""
    return CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "80"})


def test_pattern_prints_the_drawing() -> None:
    result = run(show.app, "pattern", "Local", "--set", "window=3", "--length", "12")
    assert result.exit_code == 0
    assert result.stdout.rstrip("\n") == draw_pattern(Local(window=3), 12)


def test_pattern_prints_json() -> None:
    facts = json.loads(run(show.app, "pattern", "local", "--set", "window=2", "--set", "causal=false", "--length", "3", "--json").stdout)
    assert facts["mask"] == [["110", "111", "011"]]
    assert facts["pattern"] == {"kind": "Local", "window": 2, "causal": False, "include_self": True}


def test_pattern_writes_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "causal.svg"
    result = run(show.app, "pattern", "causal", "--out", str(out))
    assert str(out) in result.stdout
    assert "<svg" in out.read_text()
    both = run(show.app, "pattern", "causal", "--out", str(out), "--json")
    assert json.loads(both.stdout)["length"] == 32


def test_positions_draw_and_write(tmp_path: Path) -> None:
    result = run(show.app, "positions", "--length", "8", "--dim", "10")
    assert "length 8, dim 10" in result.stdout
    assert "\x1b" not in result.stdout
    run(show.app, "positions", "--out", str(tmp_path / "s.png"))
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@sweep("name", ["transformer", "encoder", "decoder"])
def test_member_is_described(name: str) -> None:
    text = run(show.app, "member", name, "--preset", "base", "--set", "layers=2").stdout
    facts = json.loads(run(show.app, "member", name, "--preset", "base", "--set", "layers=2", "--json").stdout)
    assert f"{facts['parameters']['total']:,}" in text
    assert "Stacked(layers=2)" in text
    assert facts["parameters"]["total"] == formers.create(name, preset="base", layers=2, vocab=256).parameter_count()
    assert json.loads(run(show.app, "member", name, "--vocab", "99", "--json").stdout)["stacks"][-1]["sizes"]["vocab"] == 99


def test_members_are_listed() -> None:
    text = run(family).stdout
    facts = json.loads(run(family, "--json").stdout)
    assert [fact["name"] for fact in facts] == formers.members()
    assert all(fact["name"] in text for fact in facts)


@sweep(
    ("pair", "option"),
    [
        ("layers=8", {"layers": 8}),
        ("dropout=0.1", {"dropout": 0.1}),
        ("tied=false", {"tied": False}),
        ("clamp=null", {"clamp": None}),
        ("query=[4, 8]", {"query": [4, 8]}),
        ("norm=post", {"norm": "post"}),
        ('name="8"', {"name": "8"}),
        ("name=x=y", {"name": "x=y"}),
        ("name=NaN", {"name": "NaN"}),
        ("name=", {"name": ""}),
        (" layers = 8 ", {"layers": 8}),
    ],
)
def test_set_reads_json_and_else_strings(pair: str, option: dict[str, object]) -> None:
    assert parse_set([pair]) == option


def test_of_a_name_set_twice_the_last_counts() -> None:
    assert parse_set(["a=1", "b=2", "a=3"]) == {"a": 3, "b": 2}
    assert parse_set([]) == {}


def test_mistakes_are_one_sentence() -> None:
    for pair in ("layers", "=8", ""):
        with refused("name=value"):
            parse_set([pair])
    with refused("casual", "causal"):
        run(show.app, "pattern", "casual")
    with refused("nobody"):
        run(show.app, "member", "nobody")
    with refused("a.txt", ".png or .svg"):
        run(show.app, "positions", "--out", "a.txt")


@sweep("line", ["pattern causal", "pattern causal --length 200", "positions", "member transformer"])
def test_a_terminal_without_unicode_gets_ascii(line: str) -> None:
    done = command("show", *line.split(), encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert len(done.stdout.splitlines()) > 10


def test_the_verbs_load_nothing_heavy() -> None:
    heavy = "{'torch', 'formers.inspect', 'matplotlib'}"
    code = f"import sys, formers.cli.show, formers.cli.members; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spans_are_drawn_written_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    formers.create("adaptive-span", vocab=256, dim=16, heads=2, layers=2, span=100, init=0.3).save_pretrained(folder)
    result = run(show.app, "spans", str(folder))
    assert result.stdout.count("30.0") >= 4
    assert "are saved" in result.stdout
    facts = json.loads(run(show.app, "spans", str(folder), "--json").stdout)
    assert facts["spans"] == [[30.0, 30.0]] * 2
    out = tmp_path / "spans.png"
    assert str(out) in run(show.app, "spans", str(folder), "--out", str(out)).stdout
    assert out.stat().st_size > 1000
    with refused(".png or .svg"):
        run(show.app, "spans", str(folder), "--out", "spans.pdf")
