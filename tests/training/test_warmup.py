"""The warm-up of a budget in time: at any speed it takes a tenth of the time at the most, and the peak is reached."""

from __future__ import annotations

import itertools
import math

import pytest

from formers.training.config import Settings
from formers.training.optim import FLOOR, rate

PEAK = 0.002


def rates(count, seconds=90.0, **options):
    """The rates of a run that takes so many steps of equal time in its budget; no clock is read."""
    settings = Settings(minutes=seconds / 60, learning_rate=PEAK, **options)
    return [rate(settings, step, (step - 1) / count) for step in range(1, count + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse-sqrt", "constant"])
@pytest.mark.parametrize("count", [12, 30, 150, 999, 1001, 5000])
def test_a_run_in_minutes_reaches_its_learning_rate_whatever_its_speed(count, schedule):
    found = rates(count, schedule=schedule)
    top = found.index(max(found))
    assert found[top] == pytest.approx(PEAK, rel=1e-6)
    assert top <= math.ceil(count / 10)
    assert all(a <= b for a, b in itertools.pairwise(found[: top + 1]))
    assert all(a >= b for a, b in itertools.pairwise(found[top:]))
    if schedule == "cosine":
        assert found[-1] < PEAK * (FLOOR + 0.05)
    if schedule == "inverse-sqrt":
        assert found[-1] == pytest.approx(PEAK / math.sqrt(max(count / 100, 5)), rel=0.06)


def test_a_fast_run_still_warms_up_in_steps():
    found = rates(10_000)
    assert found[:100] == pytest.approx([PEAK * step / 100 for step in range(1, 101)])
    assert found[100:2000] == pytest.approx([PEAK] * 1900)


def test_the_peak_is_reached_where_the_first_evaluation_takes_a_tenth_of_the_time():
    settings = Settings(minutes=1.5, learning_rate=PEAK)
    times = [0.0, 0.03, 0.06, 0.09, 0.2, 0.23, 0.26]  # the evaluation falls between the fourth and the fifth step
    found = [rate(settings, step, spent) for step, spent in enumerate(times, start=1)]
    assert found[:4] == pytest.approx([PEAK / 100, 0.3 * PEAK, 0.6 * PEAK, 0.9 * PEAK])
    assert found[4] == pytest.approx(PEAK)
    assert PEAK > found[5] > found[6]


def test_no_warm_up_is_none():
    assert rates(10, warmup=0)[0] == PEAK
    assert rates(10, warmup=0, schedule="inverse-sqrt") == pytest.approx([PEAK / math.sqrt(step) for step in range(1, 11)])


def test_budgets_in_steps_are_what_they_were():
    for steps, warmup in ((1000, 100), (40, 100), (7, 100), (500, 3), (500, 0)):
        for schedule in ("cosine", "inverse-sqrt", "constant"):
            settings = Settings(steps=steps, warmup=warmup, schedule=schedule, learning_rate=PEAK)
            w = min(warmup, steps // 10)
            for s in range(1, steps + 1):
                p = (s - 1) / steps
                warm = min(s / w, 1.0) if w else 1.0
                shape = {
                    "cosine": FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * p)) / 2,
                    "inverse-sqrt": math.sqrt(max(w, 1) / max(s, w, 1)),
                    "constant": 1.0,
                }[schedule]
                assert rate(settings, s, p) == PEAK * warm * shape  # bit for bit
