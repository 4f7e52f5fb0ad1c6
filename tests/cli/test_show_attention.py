"""`formers show attention` and `formers show alignment`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import formers
from commands import command
from formers.cli import show
from formers.data import Bytes
from formers.inspect import alignment_of, attention_facts, by_words, draw_map, views_of
from helpers import refused


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decoder, a masked encoder, a classifier and an encoder-decoder."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = dict(dim=16, heads=2, layers=2, length=32)
    formers.create("decoder", vocab=256, **small).save_pretrained(folder / "decoder")
    for name, specials, classes in (("masked", ("mask",), None), ("classifier", (), 3)):
        model = formers.create("encoder", vocab=256 + len(specials), classes=classes, **small)
        model.tokenizer = Bytes(specials=specials)
        model.save_pretrained(folder / name)
    model = formers.create("transformer", vocab=258, **small)
    model.tokenizer = Bytes(specials=("begin", "end"))
    model.save_pretrained(folder / "transformer")
    return folder


def run(*words: object) -> str:
    """What a command prints; an error that is not typer's own comes through."""
    result = CliRunner().invoke(show.app, [str(word) for word in words], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_map_is_drawn(models: Path) -> None:
    view = views_of(formers.load(models / "decoder"), "déjà [b]")[0]
    text = run("attention", models / "decoder", "--text", "déjà [b]", "--layer", 1, "--head", 0)
    assert text.startswith(draw_map(view, 1, 0))
    assert "--out attention.html" in text
    assert run("attention", models / "decoder", "--text", "a").startswith(draw_map(views_of(formers.load(models / "decoder"), "a")[0]))


@pytest.mark.parametrize("name", ["decoder", "masked", "classifier", "transformer"])
def test_pages_and_pictures_are_written(models: Path, tmp_path: Path, name: str) -> None:
    for file, begins in {"a.html": b"<!doctype html>", "a.png": b"\x89PNG", "a.svg": b"<?xml"}.items():
        assert run("attention", models / name, "--text", "a cat", "--out", tmp_path / file) == f"wrote {tmp_path / file}\n"
        assert (tmp_path / file).read_bytes().startswith(begins)
    small = (tmp_path / "a.png").read_bytes()
    run("attention", models / name, "--text", "a cat", "--layer", 1, "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() != small


def test_facts_are_printed(models: Path, tmp_path: Path) -> None:
    views = views_of(formers.load(models / "transformer"), "a b", "cd")
    facts = json.loads(run("attention", models / "transformer", "--text", "a b", "--target", "cd", "--json"))
    assert facts["model"] == "transformer, transformer"
    assert facts["views"] == [attention_facts(view) for view in views]
    page = tmp_path / "a.html"
    options = ("--target", "cd", "--view", "encoder", "--out", page, "--json")
    one = json.loads(run("attention", models / "transformer", "--text", "a b", *options))
    assert [view["view"] for view in one["views"]] == ["encoder self-attention"]
    assert '"start":{"view":0,"layer":0,"head":-1}' in page.read_text(encoding="utf-8")


def test_an_alignment_is_of_words_or_of_tokens(models: Path, tmp_path: Path) -> None:
    options = ("alignment", models / "transformer", "--text", "ein Mann", "--target", "a man")
    aligned = alignment_of(views_of(formers.load(models / "transformer"), "ein Mann", "a man")[-1])
    assert run(*options).rstrip("\n") == draw_map(by_words(aligned))
    assert run(*options, "--tokens", "--head", 1).rstrip("\n") == draw_map(aligned, head=1)
    facts = json.loads(run(*options, "--json"))
    assert facts["queries"] == ["a", "man"]
    assert facts["keys"] == ["ein", "Mann"]
    run(*options, "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    run("alignment", models / "transformer", "--text", "ein Mann", "--out", tmp_path / "b.svg")
    assert (tmp_path / "b.svg").stat().st_size > 5000


def test_mistakes_are_one_sentence(models: Path, tmp_path: Path) -> None:
    decoder, transformer = models / "decoder", models / "transformer"
    with refused("layer=2", "0 ... 1"):
        run("attention", decoder, "--text", "a", "--layer", 2)
    with refused("head=-1", "0 ... 1"):
        run("attention", decoder, "--text", "a", "--head", -1, "--out", tmp_path / "a.html")
    with refused("'cross'", "it has self."):
        run("attention", decoder, "--text", "a", "--view", "cross")
    with refused("'deep'", "self, encoder, cross."):
        run("attention", transformer, "--text", "a", "--target", "b", "--view", "deep")
    with refused("decoder", "no cross-attention", "transformer or seq2seq"):
        run("alignment", decoder, "--text", "a")
    with refused("target", "empty"):
        run("alignment", transformer, "--text", "a", "--target", "")
    with refused("empty"):
        run("attention", transformer, "--text", "")
    with refused("target"):
        run("attention", decoder, "--text", "a", "--target", "b")
    with refused("'a.gif'", ".html, .png or .svg"):
        run("attention", decoder, "--text", "a", "--out", "a.gif")
    with refused("'a.html'", ".png or .svg"):
        run("alignment", transformer, "--text", "a", "--out", "a.html")
    with refused("nowhere"):
        run("attention", models / "nowhere", "--text", "a")
    assert not list(tmp_path.iterdir())


def test_a_terminal_without_unicode_gets_ascii(models: Path) -> None:
    line = ["show", "alignment", str(models / "transformer"), "--text", "déjà vu", "--target", "ça va"]
    done = command(*line, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert r"\u00e7a" in done.stdout
