"""What several seeds can tell of the difference between members, in words.

For members a, b with the scores of n_a, n_b seeds, their means m and variances s^2 (Welch, 1947):

d = m_a - m_b,   e^2 = s_a^2 / n_a + s_b^2 / n_b,   interval = d -+ t(1 - 0.05 / (2 k), f) e
f = e^4 / ((s_a^2 / n_a)^2 / (n_a - 1) + (s_b^2 / n_b)^2 / (n_b - 1))

k is the number of pairs of members, so that all intervals together hold with 95 % (Bonferroni). Two members differ where their interval
does not hold 0. Where no seed changes anything, s = 0, and any difference counts. One seed gives no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
"""How often any of the differences that are claimed may be due to chance alone."""
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
RULE = (
    "Welch's t intervals of the difference of two means over seeds, which hold together with 95 % for all pairs of members (Bonferroni); "
    "a difference is claimed where the interval does not hold 0."
)


class Difference(NamedTuple):
    """How far the means of two members are apart."""

    one: str
    other: str
    difference: float
    """Mean of `one` minus that of `other`."""
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval does not hold 0."""
        return self.low > 0 or self.high < 0


def differences(scores: Mapping[str, Sequence[float]], level: float = LEVEL) -> list[Difference]:
    """The difference of each pair of members, with intervals that hold together; each has at least two seeds."""
    pairs = list(combinations(scores, 2))
    return [Difference(a, b, *interval(scores[a], scores[b], level / max(1, len(pairs)))) for a, b in pairs]


def interval(one: Sequence[float], other: Sequence[float], level: float) -> tuple[float, float, float]:
    """The difference of two means, and the bounds of its Welch interval, which misses the truth in a share `level` of cases."""
    apart = fmean(one) - fmean(other)
    parts = [stdev(each) ** 2 / len(each) for each in (one, other)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return apart, apart, apart
    freedom = sum(parts) ** 2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True))
    reach = t_quantile(1 - level / 2, freedom) * error
    return apart, apart - reach, apart + reach


def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t stays below with this probability, at least one half."""
    low, high = 0.0, 1.0
    while t_below(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def t_below(value: float, freedom: float) -> float:
    """The probability that Student's t is below a value >= 0: with t = sqrt(f) tan u its density is that of cos(u)^(f-1)."""
    angles = np.linspace(0.0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    sums = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return 0.5 + 0.5 * float(np.interp(math.atan(value / math.sqrt(freedom)), angles, sums)) / float(sums[-1])


def verdict(
    scores: Mapping[str, Sequence[float]], title: str, lower: bool, failed: Mapping[str, int] | None = None, percent: bool = False
) -> dict[str, Any]:
    """Which member is better, as far as the seeds can tell, ready for JSON: sentences, the differences, and the rule.

    title: what the scores are; lower: whether less is better. failed: how many runs of a member gave no score.
    """
    says = [f"{name} diverged with {count} of its seeds, which are left out." for name, count in (failed or {}).items() if count]
    able = {name: found for name, found in scores.items() if found}
    if not able:
        return {"measure": title, "sentences": [*says, "No verdict: no run gave a score."], "differences": [], "rule": RULE}
    fewest = min(map(len, able.values()))
    if fewest < 2:
        few = "one seed cannot tell a difference from chance; give --seeds 3"
        return {"measure": title, "sentences": [*says, f"No verdict: {few}."], "differences": [], "rule": RULE}
    best = (min if lower else max)(able, key=lambda name: fmean(able[name]))
    found = differences(able)
    says += _sentences(able, best, found, title, percent) if len(able) > 1 else []
    shown = [{**each._asdict(), "differs": each.differs} for each in found]
    return {"measure": title, "best": best, "sentences": says, "differences": shown, "rule": RULE}


def _sentences(able: Mapping[str, Sequence[float]], best: str, found: Sequence[Difference], title: str, percent: bool) -> list[str]:
    """The verdict in words."""
    beside = [each for each in found if best in (each.one, each.other)]
    worse, alike = [each for each in beside if each.differs], [each for each in beside if not each.differs]
    seeds = WORDS[min(map(len, able.values()))] if min(map(len, able.values())) < len(WORDS) else str(min(map(len, able.values())))
    mean = f"{_number(fmean(able[best]), percent)} (standard deviation {_number(stdev(able[best]), percent)})"
    if not worse:
        first = (
            f"No difference that {seeds} seeds could show: {best} has the best mean {title}, {mean}, and no member is shown to be worse."
        )
    else:
        losers = _listed([_apart(each, best, percent) for each in worse])
        first = f"{best} has the best {title}, {mean}: better than {losers}."
    says = [first]
    if worse and alike:
        others = _listed([_apart(each, best, percent) for each in alike])
        says.append(f"No difference that {seeds} seeds could show between {best} and {others}.")
    elif alike:
        says.append(f"Apart from {best}: {_listed([_apart(each, best, percent) for each in alike])}.")
    return says


def _apart(each: Difference, best: str, percent: bool) -> str:
    """The other member, and how far it is behind."""
    name = each.other if each.one == best else each.one
    low, high = sorted((abs(each.low), abs(each.high))) if each.differs else (min(each.low, each.high), max(each.low, each.high))
    if not each.differs and (each.difference < 0):
        low, high = -high, -low
    return f"{name} (by {_number(abs(each.difference), percent)}, interval {_number(low, percent)} to {_number(high, percent)})"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _number(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else f"{value:.3f}"
