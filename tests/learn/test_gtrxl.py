"""gtrxl learns to remember a cue, and without a memory it does not; where the cue is shown all the time it needs none."""

from __future__ import annotations

import pytest

import formers.rl

pytestmark = pytest.mark.slow

SIZES = {"dim": 32, "heads": 2, "length": 32, "memory": 32, "quiet": True}


def test_a_cue_is_remembered():
    done = formers.rl.train("gtrxl", "tmaze:8", steps=60_000, **SIZES)
    assert done.results["mean_return"] >= 0.97


def test_without_a_memory_the_cue_is_lost():
    done = formers.rl.train("gtrxl", "tmaze:8", steps=60_000, **{**SIZES, "memory": 1})
    assert done.results["mean_return"] <= 0.65


def test_where_the_cue_stays_no_memory_is_needed():
    done = formers.rl.train("gtrxl", "corridor:8", steps=60_000, **{**SIZES, "memory": 1})
    assert done.results["mean_return"] >= 0.97


def test_vmpo_remembers_it_too():
    done = formers.rl.train("gtrxl", "tmaze:8", steps=60_000, algorithm="vmpo", **SIZES)
    assert done.results["mean_return"] >= 0.97
