"""How runs end that are not sound at their end: never as if all were well, and never without a good checkpoint."""

from __future__ import annotations

import json
import math
import sys

import pytest

import formers
from formers.cli.app import DIVERGED, main
from formers.model.files import checkpoints, fault
from formers.training.divergence import Diverged
from formers.training.trainer import Trainer
from helpers import one_sentence

TINY = dict(dim=16, heads=2, layers=1, length=8, batch=2, warmup=0, eval_batches=2, sample_tokens=0, track="none", quiet=True)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 60)
    return path


def spoil(monkeypatch, *steps):
    """Lets the loss of these steps, counted from 0, be NaN."""
    advance = Trainer.advance

    def spoiled(loop):
        def ruin(module, arguments, output):
            output.loss = output.loss * math.nan

        handle = loop.model.register_forward_hook(ruin) if loop.step in steps else None
        try:
            return advance(loop)
        finally:
            if handle is not None:
                handle.remove()

    monkeypatch.setattr(Trainer, "advance", spoiled)


def diverged(act, *words):
    with pytest.raises(Diverged) as caught:
        act()
    one_sentence(str(caught.value))
    for word in words:
        assert word in str(caught.value)


def is_good(run, step):
    """Whether the newest checkpoint of a run is that of a step, sound, and of finite weights."""
    last = checkpoints(run)[0]
    model = formers.load(run)
    return last.name == f"step-{step:08d}" and fault(last) is None and all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(("bad", "words"), [((5,), "the last step has no finite"), ((4, 5), "the last 2 steps have no finite")])
def test_a_run_whose_last_steps_are_not_finite_has_diverged(text, tmp_path, monkeypatch, bad, words):
    spoil(monkeypatch, *bad)
    run = tmp_path / "run"
    diverged(lambda: formers.train("decoder", text, run, steps=6, **TINY), words, "learning_rate", f"({run / 'ckpt' / 'step-00000006'})")
    assert is_good(run, 6)  # the steps were skipped
    assert not json.loads((run / "run.json").read_text())["finished"]
    diverged(lambda: formers.resume(run, quiet=True), words)
    assert formers.resume(run, steps=8, quiet=True).results["steps"] == 8


def test_weights_that_are_not_finite_are_never_saved(text, tmp_path):
    run = tmp_path / "run"
    options = {**TINY, "learning_rate": 1e39, "save_every": 1, "eval_every": 100}
    diverged(lambda: formers.train("decoder", text, run, steps=50, **options), "weights are not finite after step 1", "step-00000000")
    assert is_good(run, 0)


def test_a_figure_at_the_end_that_is_not_a_number_is_an_exit_code(text, tmp_path, monkeypatch, capfd):
    run = tmp_path / "run"
    line = ["formers", "train", "decoder", "--data", str(text), "--out", str(run), "--steps", "1", "--track", "none", "-q"]
    sizes = {**TINY, "learning_rate": 1e39}
    sets = [word for name, value in sizes.items() if name not in ("quiet", "track") for word in ("--set", f"{name}={value}")]
    monkeypatch.setattr(sys, "argv", [*line, *sets])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == DIVERGED
    said = capfd.readouterr().err
    assert "formers: the loss on held-out data is nan at the end, after step 1" in said
    assert is_good(run, 0)


def test_the_last_figure_counts_even_if_the_sample_was_fine(text, tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr(
        "formers.training.validation.evaluate_all", lambda *given, **how: {"loss": math.inf, "targets": 1, "tokens_per_second": 1.0}
    )
    diverged(lambda: formers.train("decoder", text, run, steps=2, **TINY), "held-out data is inf at the end", "step-00000002")
    assert is_good(run, 2)
    assert not json.loads((run / "run.json").read_text())["finished"]


def test_without_a_folder_it_is_reported_as_well(text, monkeypatch):
    spoil(monkeypatch, 1)
    diverged(lambda: formers.train("decoder", text, steps=2, **TINY), "the last step has no finite", "train with less than learning_rate")
