"""What seeds can tell: Student's t as tables have it, and a verdict that claims no more than the spread allows."""

from __future__ import annotations

import random

import pytest

from formers.compare.verdict import differences, interval, t_below, t_quantile, verdict
from helpers import sweep


@sweep(
    ("share", "freedom", "wanted"), [(0.975, 1, 12.706), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.995, 10, 3.1693), (0.975, 1000, 1.9623)]
)
def test_quantiles_are_those_of_the_tables(share, freedom, wanted):
    assert t_quantile(share, freedom) == pytest.approx(wanted, rel=2e-4)
    assert t_below(t_quantile(share, freedom), freedom) == pytest.approx(share, abs=1e-6)


def test_the_interval_is_welchs():
    # s^2 = 1 and 4, n = 3: e = sqrt(5/3), f = (5/3)^2 / ((1/9 + 16/9) / 2) = 2.9412, t(0.975) = 3.2196
    apart, low, high = interval([1.0, 2.0, 3.0], [4.0, 6.0, 8.0], 0.05)
    assert apart == -4.0
    assert t_quantile(0.975, 2.9412) == pytest.approx(3.2196, rel=1e-3)
    assert high - low == pytest.approx(2 * 3.2196 * (5 / 3) ** 0.5, rel=1e-3)


def test_one_seed_gives_no_verdict():
    found = verdict({"a": [1.0], "b": [9.0]}, "loss", lower=True)
    assert found["sentences"] == ["No verdict: one seed cannot tell a difference from chance; give --seeds 3."]
    assert "best" not in found


def test_a_difference_within_the_spread_is_not_claimed():
    found = verdict({"a": [1.0, 1.2, 1.1], "b": [1.15, 1.05, 1.25]}, "loss", lower=True)
    assert found["best"] == "a"
    assert found["sentences"][0].startswith("No difference that three seeds could show")
    assert not any(each["differs"] for each in found["differences"])


def test_a_difference_beyond_it_is_claimed_in_the_right_direction():
    scores = {"a": [1.0, 1.01, 0.99], "b": [2.0, 2.01, 1.99], "c": [1.02, 1.0, 1.01]}
    less = verdict(scores, "loss", lower=True)
    assert less["best"] == "a"
    assert "better than b (by 1.000" in less["sentences"][0]
    assert "between a and c" in less["sentences"][1]
    more = verdict(scores, "accuracy", lower=False, percent=True)
    assert more["best"] == "b"
    assert "a (by 100.0%" in more["sentences"][0]


def test_seeds_that_change_nothing_and_seeds_that_fail():
    same = verdict({"a": [1.0, 1.0], "b": [0.5, 0.5], "c": [1.0, 1.0]}, "exact", lower=False)
    assert "better than b" in same["sentences"][0]
    assert "between a and c" in same["sentences"][1]
    failed = verdict({"a": [], "b": [1.0, 2.0]}, "loss", lower=True, failed={"a": 2, "b": 0})
    assert failed["sentences"] == ["a diverged with 2 of its seeds, which are left out."]
    assert verdict({"a": []}, "loss", lower=True)["sentences"] == ["No verdict: no run gave a score."]


def test_members_that_are_alike_are_rarely_told_apart():
    """Of 400 comparisons of four members with three seeds of one normal law, at most a share of about 5 % claims any difference."""
    drawn = random.Random(0)
    wrong = 0
    for _ in range(400):
        scores = {name: [drawn.gauss(0.0, 1.0) for _ in range(3)] for name in "abcd"}
        wrong += any(each.differs for each in differences(scores))
    assert wrong <= 30


def test_members_five_standard_deviations_apart_are_mostly_told_apart():
    drawn = random.Random(1)
    found = 0
    for _ in range(200):
        scores = {"a": [drawn.gauss(0.0, 1.0) for _ in range(5)], "b": [drawn.gauss(5.0, 1.0) for _ in range(5)]}
        found += differences(scores)[0].differs
    assert found >= 190
