"""Spans as bars: what is drawn is what the model has, and what is said to be saved is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import formers
from formers.data import Bytes
from formers.inspect import draw_spans, save_spans, spans_facts, spans_of
from helpers import refused

TINY = {"vocab": 256, "dim": 16, "heads": 2, "layers": 2, "length": 32, "span": 100, "ramp": 10}


def static() -> formers.Model:
    model = formers.create("adaptive-span", **TINY)
    with torch.no_grad():
        for block, shares in zip(model.stack.depth.blocks, ([0.0, 0.255], [1.0, 0.5]), strict=True):
            block.attention.score.share.copy_(torch.tensor(shares))
    return model


def test_the_facts_of_learned_spans() -> None:
    facts = spans_facts(spans_of(static(), name="mine"))
    assert facts["spans"] == facts["largest"] == [[0.0, 25.5], [100.0, 50.0]]
    assert facts["mean"] == pytest.approx(43.875)
    # Keys at distances x < R + z: 9, 35, all 100, 59. For each, three products of width 8.
    assert facts["keys"] == 9 + 35 + 100 + 59
    assert facts["flops"] == (9 + 35 + 100 + 59) * 2 * 3 * 8
    assert facts["saved"] == pytest.approx(1 - 203 / 400)
    assert facts["tokens"] is None


def test_the_drawing_has_a_bar_for_each_head() -> None:
    lines = draw_spans(spans_of(static(), name="mine"), columns=80).splitlines()
    bars = [line for line in lines if "█" in line or "░" in line]
    assert len(bars) == 4
    assert [line.rsplit(None, 1)[1] for line in bars] == ["0.0", "25.5", "100.0", "50.0"]
    full = [line.count("█") for line in bars]
    assert full[0] == 0 < full[1] < full[3] < full[2]
    assert all(len(line) <= 80 for line in lines)
    assert "203 of 400 keys" in " ".join(lines)
    assert draw_spans(spans_of(static()), encoding="ascii").isascii()


def test_dynamic_spans_are_those_of_a_text() -> None:
    model = formers.create("adaptive-span", dynamic=True, init=0.2, **TINY)
    model.tokenizer = Bytes()
    with torch.no_grad():
        model.stack.depth.blocks[0].attention.score.share.weight.normal_(std=0.5)
    seen = spans_of(model, "some text")
    assert seen.tokens == 9
    notes = model.inspect(torch.tensor([list(b"some text")])).notes["span by token"]
    torch.testing.assert_close(seen.mean[0], notes[0][0].double().mean(dim=0))
    torch.testing.assert_close(seen.largest[0], notes[0][0].double().amax(dim=0))
    assert (seen.largest >= seen.mean).all()
    assert "9 tokens" in draw_spans(seen)


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = save_spans(spans_of(static(), name="mine"), tmp_path / "spans.svg")
    assert "<svg" in out.read_text()


def test_what_has_no_spans_is_refused() -> None:
    with refused("decoder", "adaptive-span"):
        spans_of(formers.create("decoder", vocab=9, dim=16, heads=2, layers=1))
    with refused("no learned spans"):
        spans_of(formers.create("adaptive-span", fixed=True, **TINY))
    with refused("--text"):
        spans_of(formers.create("adaptive-span", dynamic=True, **TINY))
    with refused("leave --text out"):
        spans_of(static(), "text")
