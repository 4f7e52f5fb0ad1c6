"""Agreement of subject and verb, with attractors between them (after Linzen et al., 2016): the cats by the dog -> are

S = the NOUN (PREPOSITION the NOUN)*       the verb agrees with the first noun

An attractor is a noun of the other number between subject and verb. A sentence has n = `attractors` of them, and any number below 2 n of
nouns of the subject's own number. If there are both kinds, the last noun is of either kind with equal probability. So the majority of
nouns says almost nothing about the verb, and the last noun says little: it is an attractor with probability 1/2 + 1/(4 n).
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from formers.data.numbers import Two
from formers.data.tasks.exercise import Strings

NOUNS = ("ant", "bat", "bee", "cat", "cow", "cub", "dog", "hen", "owl", "pig", "ram", "rat")
PREPOSITIONS = ("at", "by", "near", "of", "on", "with")


class Agreement(Strings):
    """The verb that agrees with a subject."""

    attractors: int = 2
    test_attractors: int = 4
    dial: ClassVar[str] = "attractors"
    least: ClassVar[int] = 0
    labels: ClassVar[tuple[str, ...] | None] = ("are", "is")

    @property
    def alphabet(self) -> str:
        return "".join(sorted(set(" ".join((*NOUNS, *PREPOSITIONS, "the", "are", "is", "s")))))

    def draw(self, random: Random, size: int) -> Two:
        plural = random.random() < 0.5
        others = [not plural] * size + [plural] * random.randrange(max(1, 2 * size))
        random.shuffle(others)
        if len(others) > size:
            last = plural ^ (random.random() < 0.5)
            others.remove(last)
            others.append(last)
        words = ["the", _noun(random, plural)]
        for other in others:
            words += [random.choice(PREPOSITIONS), "the", _noun(random, other)]
        return " ".join(words), "are" if plural else "is"

    def count(self, size: int) -> int:
        return int(2 * len(NOUNS) * (len(NOUNS) * len(PREPOSITIONS)) ** size)

    def longest(self, size: int) -> tuple[int, int]:
        return len("the cats") + max(0, 3 * size - 1) * len(" with the cats"), len("are")


def _noun(random: Random, plural: bool) -> str:
    return random.choice(NOUNS) + "s" * plural
