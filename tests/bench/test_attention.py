"""`formers bench attention`: what it measures, where lines cross, the picture, and what is refused; speed is never checked here."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise

import pytest
from rich.console import Console
from typer.testing import CliRunner

from formers.bench import attention, curves
from formers.bench.progress import working
from formers.cli.bench import app
from formers.core import FormersError
from formers.patterns import LocalGrid
from helpers import one_sentence, refused, sweep


@pytest.fixture
def tiny(monkeypatch):
    """Memory without processes, and few lengths."""
    monkeypatch.setattr(attention, "extra_memory", lambda make, name, length: 6 * attention.HEADS * length * attention.WIDTH * 4)
    monkeypatch.setattr(attention, "LENGTHS", (64, 128))
    monkeypatch.setattr(attention, "AT", 64)


def run(*arguments):
    return CliRunner().invoke(app, ["attention", *arguments], catch_exceptions=False, env={"COLUMNS": "80"})


@sweep("length", [1, 48, 97, 256])
def test_allowed_pairs_are_those_of_the_mask_and_an_image_has_as_many_pixels(length):
    for pattern in attention.patterns(length).values():
        assert attention.allowed(pattern, length) == pattern.mask(length, attention.HEADS).sum() / attention.HEADS
    grid = attention.patterns(length)["grid"]
    assert grid.height * grid.width == length


def test_every_pattern_stands_beside_the_kernel_that_does_all_it_does():
    beside = {name: attention.beside(pattern) for name, pattern in attention.patterns(256).items()}
    assert {name for name, whole in beside.items() if whole == "full"} == {"both-sides", "bigbird"}
    grid = LocalGrid(height=16, width=16, query=(4, 4), memory=(4, 4))
    order = grid.order()
    assert not grid.mask(256)[0][order][:, order].triu(1).any(), "in its own order an image is causal"


def test_there_is_a_row_for_every_pattern_and_length(tiny):
    results = attention.bench_attention((128, 64, 64), rounds=1)
    names = [*attention.WHOLE, *attention.patterns(64)]
    assert [(row["length"], row["pattern"]) for row in results["rows"]] == [(n, name) for n in (64, 128) for name in names]
    for row in results["rows"]:
        assert min(row["forward_seconds"], row["seconds"], row["forward_speedup"], row["speedup"], row["rate"]) > 0
        if row["pattern"] in attention.WHOLE:
            assert (row["speedup"], row["rate"]) == (1.0, 1.0)
        else:
            whole = next(r for r in results["rows"] if (r["pattern"], r["length"]) == (row["beside"], row["length"]))
            assert row["speedup"] == pytest.approx(whole["seconds"] / row["seconds"])
            pairs = 128 * 129 / 2 if row["beside"] == "causal" else 128 * 128
            if row["length"] == 128:
                share = attention.allowed(attention.patterns(128)[row["pattern"]], 128) / pairs
                assert row["rate"] == pytest.approx(row["speedup"] * share)
    assert set(results["faster_from"]) == set(attention.patterns(64))
    assert results["memory_length"] == 128
    assert results["memory"] == dict.fromkeys(names, 2.0)
    json.dumps(results)


def test_a_check_measures_what_it_evaluates(tiny):
    results = attention.check_attention(rounds=1)
    assert set(attention.LIMITS) <= set(results)
    assert {(row["pattern"], row["length"]) for row in results["rows"]} == {
        *((name, 64) for name in (*attention.WHOLE, *attention.FLOORS)),
        *((name, 128) for name in attention.FLOORS),
    }
    assert set(results["memory"]) == set(attention.FLOORS)
    seconds = {(row["pattern"], row["length"]): row["seconds"] for row in results["rows"]}
    assert results["local_growth"] == pytest.approx(seconds["local", 128] / seconds["local", 64])
    assert results["bigbird_speedup"] == pytest.approx(seconds["full", 64] / seconds["bigbird", 64])
    assert results["fixed_memory"] == 2.0


def test_the_limits_are_those_that_were_asked_for():
    assert {name: low for name, (low, _) in attention.LIMITS.items() if name.endswith("speedup")} == {
        "local_speedup": 8.0, "strided_speedup": 8.0, "fixed_speedup": 4.5, "bigbird_speedup": 5.5,
    }  # fmt: skip
    assert attention.AT == 8192
    assert attention.LIMITS["local_growth"] == attention.LIMITS["bigbird_growth"] == (0.0, 2.3)
    assert attention.LIMITS["fixed_memory"] == (0.0, 12.0)


def test_rounds_grow_few_where_they_take_long():
    assert [attention._turns(15, n) for n in (64, 2048, 4096, 8192, 10**6)] == [15, 15, 7, 5, 5]
    assert [attention._turns(2, n) for n in (64, 8192)] == [2, 2]


def test_lines_cross_where_their_formulas_do():
    lengths = (512, 1024, 2048, 4096)
    assert curves.crossover(lengths, [n**2 / (1500 * n) for n in lengths]) == pytest.approx(1500, abs=1e-9)
    assert curves.crossover(lengths, [n**2 / (10 * n**1.5) for n in lengths]) == 512, "faster everywhere"
    assert curves.crossover(lengths, [n**2 / (100 * n**1.5) for n in lengths]) is None, "100² is beyond"
    assert curves.crossover(lengths, [2.0, 0.5, 0.5, 2.0]) == pytest.approx(math.sqrt(2048 * 4096)), "from where on it stays faster"
    assert curves.crossover((1024, 2048), [0.5, 1.0]) == pytest.approx(2048)
    assert curves.crossover((1024,), [3.0]) == 1024
    assert curves.crossover((1024,), [0.3]) is None


def test_a_point_stands_on_its_line_and_names_stand_apart():
    assert curves._between((100, 400), (1.0, 4.0), 200.0) == pytest.approx(2.0)
    assert curves._between((100, 400, 1600), (1.0, 4.0, 64.0), 800.0) == pytest.approx(16.0)
    places = curves._spread({"a": 1.0, "b": 1.01, "c": 0.99, "d": 50.0}, 0.1, 100.0)
    heights = sorted(places.values())
    assert sorted(places, key=places.__getitem__) == ["c", "a", "b", "d"]
    assert min(b / a for a, b in pairwise(heights)) >= 1000**0.04 * (1 - 1e-9)


def test_the_table_the_json_and_the_picture_tell_the_same(tiny, tmp_path):
    pytest.importorskip("matplotlib")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"curves{suffix}"
        done = run("--rounds", "1", "--out", str(path))
        assert (done.exit_code, done.stderr) == (0, "")
        assert path.read_bytes().startswith(start)
        assert f"wrote {path}" in done.stdout.replace("\n", "")
    assert "faster from" in done.stdout
    for name in (*attention.WHOLE, *attention.patterns(64)):
        assert name in done.stdout
    facts = json.loads(run("--rounds", "1", "--length", "32", "--json").stdout)
    assert {row["length"] for row in facts["rows"]} == {32}
    assert facts["memory"]["local"] == 2.0


def test_the_picture_marks_a_cross_over_with_its_length(tmp_path):
    pytest.importorskip("matplotlib")
    lengths, path = (512, 1024, 2048), tmp_path / "made-up.svg"
    times = {"causal": [n**2 * 1e-8 for n in lengths], "full": [n**2 * 2e-8 for n in lengths], "local": [1100 * n * 1e-8 for n in lengths]}
    rows = [dict(pattern=name, length=n, seconds=t) for name, each in times.items() for n, t in zip(lengths, each, strict=True)]
    start = curves.crossover(lengths, [a / b for a, b in zip(times["causal"], times["local"], strict=True)])
    figure = curves.new_curves(path, lengths)
    curves.save_curves(figure, path, {"rows": rows, "faster_from": {"local": start}, "caption": "made up"})
    words = {text.get_text() for text in figure.axes[0].texts}
    assert words == {"1,100", "local", "SDPA, causal", "SDPA, full"}
    (point,) = (line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert point.get_xdata()[0] == pytest.approx(1100)
    assert point.get_ydata()[0] == pytest.approx(1100**2 * 1e-8)


def test_a_missed_figure_exits_1_and_an_unknown_one_is_reported(tiny, monkeypatch):
    monkeypatch.setattr(attention, "extra_memory", lambda make, name, length: None)
    monkeypatch.setattr(attention, "LIMITS", {"local_speedup": (0.0, math.inf), "local_memory": (0.0, 12.0)})
    done = run("--rounds", "1", "--check")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == ["not checked: local_memory cannot be measured on this system"]
    assert "local speedup" in done.stdout
    monkeypatch.setattr(attention, "LIMITS", {"local_speedup": (1e9, math.inf)})
    done = run("--rounds", "1", "--check", "--json")
    assert done.exit_code == 1
    assert "missed: local_speedup" in done.stderr
    assert json.loads(done.stdout)["memory"]["local"] is None


def test_what_cannot_be_is_refused_before_anything_is_timed(tmp_path):
    for arguments in (
        ["--length", "64", "--out", str(tmp_path / "x.png")],
        ["--length", "64", "--length", "64", "--out", str(tmp_path / "x.png")],
        ["--length", "64", "--length", "128", "--out", str(tmp_path / "x.pdf")],
        ["--length", "64", "--length", "128", "--out", str(tmp_path / "none" / "x.png")],
        ["--check", "--length", "64"],
        ["--check", "--out", "x.png"],
    ):
        with pytest.raises(FormersError) as caught:
            run(*arguments)
        one_sentence(str(caught.value))
    with refused("x.png", "--length"):
        curves.new_curves(tmp_path / "x.png", [64])
    assert run("--length", "0").exit_code == 2


def test_a_bar_is_drawn_on_a_terminal_alone():
    for terminal in (True, False):
        screen = io.StringIO()
        with working("working", 4, Console(file=screen, force_terminal=terminal, width=60)) as advance:
            advance(1)
            advance(2)
        assert ("75%" in screen.getvalue()) is terminal
        assert terminal or screen.getvalue() == ""
