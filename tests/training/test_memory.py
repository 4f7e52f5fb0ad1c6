"""A training that memory cannot hold is refused before it begins, with the largest that fits."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import formers
from formers.core.live import Live
from formers.model import build
from formers.training import memory, prepare
from formers.training.config import Settings
from formers.training.memory import Estimate, free_memory, rough_bytes
from helpers import refused

TINY = {"dim": 32, "heads": 2, "layers": 2, "quiet": True, "track": "none", "sample_tokens": 0}


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 4000)
    return path


@pytest.fixture
def free(monkeypatch):
    """Sets how many bytes the machine has free."""

    def say(count: int) -> None:
        monkeypatch.setattr(memory, "free_memory", lambda device: count)

    return say


@pytest.mark.parametrize("member", ["decoder", "encoder", "transformer-xl", "reformer", "universal-transformer"])
def test_the_estimate_is_what_a_real_step_holds(member, text):
    task = prepare(member, text, None, {"dim": 32, "heads": 2})
    settings = Settings(batch=4, steps=1)
    estimate = Estimate(task, settings)
    model = build(task.spec).train()
    batch = {name: value for name, value in task.batches.train_batch(4, 0, 0).items() if name != "fresh"}
    extra = {"update": 0} if model.spec.draws else {}
    if task.batches.continues:
        with torch.no_grad():
            state = model(**batch, state=model.initial_state(4)).state
        extra["state"] = state
    with Live() as live:
        model(**batch, **extra).loss.backward()
    weights = sum(4 * p.numel() for p in model.parameters())
    assert estimate.fixed >= 3 * weights  # with AdamW's two moments
    slack = 0.3 if member == "reformer" else 0.1  # fake sorting makes more tensors
    assert estimate.needed(4) - estimate.fixed == pytest.approx(live.peak, rel=slack)


def test_the_largest_batch_that_is_named_fits_and_a_larger_one_does_not(text, free):
    free(30_000_000)
    with refused("batch=512", "0.0 GB are free", "largest batch that fits is about"):
        formers.train("decoder", text, steps=1, batch=512, length=64, **TINY)
    task = prepare("decoder", text, None, {"dim": 32, "heads": 2, "layers": 2, "length": 64})
    settings = Settings(batch=512, steps=1)
    estimate = Estimate(task, settings)
    largest = estimate.largest_batch(512, estimate.needed(512), 30_000_000)
    assert estimate.needed(largest) <= 30_000_000 < estimate.needed(2 * largest)


def test_what_is_recommended_trains(text, free):
    free(30_000_000)
    with pytest.raises(formers.FormersError) as caught:
        formers.train("decoder", text, steps=1, batch=512, length=64, **TINY)
    batch, accumulate = (int(n) for n in re.findall(r"about (\d+); accumulate=(\d+)", str(caught.value))[0])
    formers.train("decoder", text, steps=1, batch=batch, length=64, **TINY)
    formers.train("decoder", text, steps=1, batch=512, accumulate=accumulate, length=64, **TINY)


def test_a_row_that_does_not_fit_is_told_with_a_length_that_does(text, free):
    free(20_000_000)
    with refused("batch=1", "rows of 8,192", "at about length=1024"):
        formers.train("decoder", text, steps=1, batch=1, length=8192, **TINY)


def test_weights_that_do_not_fit_are_refused_before_they_are_made(text, free, monkeypatch):
    free(20_000_000)
    monkeypatch.setattr("formers.training.start.new_model", None)
    with refused("weights, gradients and optimiser state", "smaller dim"):
        formers.train("decoder", text, steps=1, **{**TINY, "dim": 512})


def test_checkpointing_and_accumulation_need_less(text):
    task = prepare("decoder", text, None, {"dim": 32, "heads": 2, "layers": 6})
    plain, less = (Estimate(task, Settings(batch=16, steps=1, checkpoint=on)).needed(16) for on in (False, True))
    assert less < 0.7 * plain
    assert Estimate(task, Settings(batch=16, steps=1)).needed(4) < 0.5 * plain


def test_pairs_are_counted_as_long_as_they_are():
    task = prepare("transformer", "numbers", None, {"dim": 32, "heads": 2, "length": 512})
    estimate = Estimate(task, Settings(batch=8, steps=1))
    assert estimate.length < 64
    assert estimate.needed(8) < rough_bytes(task.spec, 8)


def test_resuming_where_there_is_less_memory_is_refused(text, tmp_path, free):
    formers.train("decoder", text, tmp_path / "run", steps=1, batch=64, length=64, **TINY)
    free(5_000_000)
    with refused("batch=64", "largest batch"):
        formers.resume(tmp_path / "run", steps=2, quiet=True)


def test_small_trainings_are_not_counted(text, monkeypatch):
    monkeypatch.setattr(memory, "Estimate", None)
    formers.train("decoder", text, steps=1, batch=2, length=16, **TINY)


def test_the_estimate_takes_less_than_a_second(text):
    task = prepare("decoder", text, None, {"dim": 768, "heads": 12, "layers": 12, "length": 1024})
    Estimate(prepare("decoder", text, None, {"dim": 32, "heads": 2}), Settings(steps=1)).needed(1)  # imports
    start = time.process_time()
    assert Estimate(task, Settings(batch=16, steps=1)).needed(16) > 5e9
    assert time.process_time() - start < 1.0


def test_the_free_memory_of_the_machine_is_known():
    found = free_memory(torch.device("cpu"))
    total = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) << 10
    assert found is not None
    assert 0 < found <= total
    assert free_memory(torch.device("meta")) is None


def test_the_limit_of_a_control_group_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\nactive_file 50\ninactive_file 100\n")
    assert memory._left(tmp_path / "memory.max", tmp_path / "memory.current") == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left(tmp_path / "memory.max", tmp_path / "memory.current") is None


def test_the_command_line_refuses_in_one_sentence(text, tmp_path):
    command = [sys.executable, "-m", "formers", "train", "decoder", "--data", str(text), "--out", str(tmp_path / "run"), "--steps", "1"]
    done = subprocess.run([*command, "--set", "batch=30000000"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "the largest batch that fits is about" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "run.json").exists()
