"""Ablations trained for a few steps: rows, honest evaluations, what diverges, the page and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from formers.experiments.ablate import WHOLE, ablate, cells, markdown, panels
from formers.inspect.draw.bars import save_bars
from helpers import refused

TINY = {"dim": 16, "heads": 2, "layers": 1, "length": 16, "batch": 4, "final_batches": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 100)
    return str(file)


@pytest.fixture(scope="module")
def results(text) -> dict:
    return ablate("decoder", text, ["mask", "heads"], steps=40, seeds=2, options={**TINY, "learning_rate": 0.01})


def test_each_is_trained_with_the_same_seeds(results):
    assert [row["without"] for row in results["rows"]] == [WHOLE, "mask", "heads"]
    for row in results["rows"]:
        assert len(row["loss"]) == len(row["train_loss"]) == 2
        assert row["diverged"] == [None, None]
    assert len({row["parameters"] for row in results["rows"]}) == 1
    assert results["rows"][0]["loss"][0] != results["rows"][0]["loss"][1]


def test_a_run_is_the_same_again(text, results):
    again = ablate("decoder", text, ["heads"], steps=40, seeds=1, options={**TINY, "learning_rate": 0.01})
    assert again["rows"][0]["loss"][0] == results["rows"][0]["loss"][0]
    assert again["rows"][1]["loss"][0] == results["rows"][2]["loss"][0]


def test_the_table_the_page_and_the_picture(results, tmp_path):
    titles, rows = cells(results)
    assert titles[:4] == ["without", "parameters", "train loss", "held-out"]
    assert all(len(row) == len(titles) for row in rows)
    assert rows[0][5] == ""
    assert rows[1][5][0] in "+-"
    page = markdown(results, "formers ablate", Path("x.png"))
    assert "$ formers ablate" in page
    assert "![what each part is worth](x.png)" in page
    assert page.count("\n| ") == 4
    assert "training loss" in panels(results)[0].bars[1].note
    assert save_bars(panels(results), tmp_path / "x.svg", "caption").read_text().startswith("<?xml")


def test_costs_are_what_is_lost_and_a_spread_needs_two_seeds():
    def row(name, *losses):
        many = [None] * len(losses)
        return {"without": name, "parameters": 5, "train_loss": list(losses), "loss": list(losses), "accuracy": many, "diverged": many}

    _, rows = cells({"rows": [row(WHOLE, 1.0, 1.5), row("mask", 2.0, 2.25), row("norm", 1.0, 1.0)]})
    assert [line[4] for line in rows] == ["0.500", "0.250", "0.000"]
    assert [line[5] for line in rows] == ["", "+0.875", "-0.250"]
    _, alone = cells({"rows": [row(WHOLE, 1.0), row("mask", 2.0)]})
    assert [line[4:6] for line in alone] == [["", ""], ["", "+1.000"]]


def test_a_model_trained_without_a_mask_is_evaluated_with_it(text, monkeypatch):
    from formers.experiments import ablate as bench

    evaluated = []

    def evaluate(model, task, settings):
        evaluated.append((type(model.spec.pattern).__name__, type(model.spec.head).__name__, settings.final_batches))
        return {"loss": 3.25}

    monkeypatch.setattr(bench, "_evaluated", evaluate)
    found = ablate("decoder", text, ["mask"], steps=2, seeds=1, options=TINY)
    assert evaluated == [("Causal", "LanguageModel", 2)] * 2
    assert [row["loss"] for row in found["rows"]] == [[3.25]] * 2
    assert found["rows"][1]["train_loss"] != [3.25]


def test_what_diverges_is_a_result(text):
    found = ablate("decoder", text, ["norm"], steps=30, seeds=1, options={**TINY, "learning_rate": 1e30, "warmup": 0, "clip": 1e30})
    assert found["rows"][1]["diverged"] != [None]
    assert found["rows"][1]["loss"] == [None]
    assert "diverged in 1 of 1" in cells(found)[1][1]
    assert panels(found)[0].bars[1].values == []


def test_what_a_member_lacks_is_reported_or_refused(text):
    said: list[str] = []
    found = ablate("transformer-xl", text, steps=1, seeds=1, options={**TINY, "memory": 8}, say=said.append)
    assert {row["without"] for row in found["rows"]} == {WHOLE, "feed-forward", "residual", "norm", "scaling", "heads"}
    assert [line.split(":")[0] for line in said] == ["without positions", "without mask"]
    with refused("transformer-xl", "no positional encoding"):
        ablate("transformer-xl", text, ["positions"], steps=1, options=TINY)


def test_mistakes_are_refused(text):
    with refused("no ablation", "nrom", "norm"):
        ablate("decoder", text, ["nrom"])
    with refused("rnn has none of", "use decoder"):
        ablate("rnn", str(text), steps=1, seeds=1, say=lambda words: None)
    with refused("seeds=0"):
        ablate("decoder", text, seeds=0)
    with refused("transformer", "two stacks"):
        ablate("transformer", "numbers", steps=1, options={"layers": 1})
    with refused("no option", "sped"):
        ablate("decoder", text, options={"sped": 3})
