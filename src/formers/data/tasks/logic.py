"""Logic: binary gates, one after the other (Graves, 2016, section 3.2).

b_{i+1} = T_i(b_i, b_{i-1})        i = 1 ... B, T_i the truth table of the i-th gate; target: b_{B+1}

text       "b_1 b_0" and a letter for every gate, such as 10CDA -> b_{B+1}
vectors    a row of steps, each [b_0, b_1, G chunks of 10]: the first B chunks, B drawn from 1 ... G for every step, are one-hot gates, the
           others 0. From the second step on b_0 is the answer of the previous step, which is not given: its entry is 0.

Each gate depends on the two values before it, so B gates are B sequential steps.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from formers.core import IGNORED
from formers.data.numbers import Two
from formers.data.tasks.exercise import Steps, Strings, Vectors

# T(P, Q) for (P, Q) = (1, 1), (1, 0), (0, 1), (0, 0): Graves' table 1.
GATES = {
    "A": (0, 0, 0, 1),  # NOR
    "B": (0, 0, 1, 0),  # Q and not P
    "C": (0, 1, 0, 0),  # P and not Q
    "D": (0, 1, 1, 0),  # XOR
    "E": (0, 1, 1, 1),  # NAND
    "F": (1, 0, 0, 0),  # AND
    "G": (1, 0, 0, 1),  # XNOR
    "H": (1, 0, 1, 1),  # if P then Q
    "I": (1, 1, 0, 1),  # if Q then P
    "J": (1, 1, 1, 0),  # OR
}
"""The ten gates that depend on both values, by letter."""
TABLE = torch.tensor(list(GATES.values()))


def gate(letter: str, p: int, q: int) -> int:
    """T(p, q) of a gate."""
    return GATES[letter][3 - 2 * p - q]


class Logic(Strings):
    """The last value of two bits and a row of gates."""

    gates: int = 10
    test_gates: int = 20
    dial: ClassVar[str] = "gates"
    labels: ClassVar[tuple[str, ...] | None] = ("0", "1")

    @property
    def alphabet(self) -> str:
        return "01" + "".join(GATES)

    def draw(self, random: Random, size: int) -> Two:
        letters = "".join(random.choices("".join(GATES), k=size))
        now, before = random.randrange(2), random.randrange(2)
        source = f"{now}{before}{letters}"
        for letter in letters:
            now, before = gate(letter, now, before), now
        return source, str(now)

    def count(self, size: int) -> int:
        return int(4 * 10**size)

    def longest(self, size: int) -> tuple[int, int]:
        return 2 + size, 1


class LogicVectors(Vectors):
    """A row of steps, each with its gates, as in Graves (2016); the difficulty of a step is its number of gates."""

    gates: PositiveInt = 10
    """Maximum number of gates of a step."""
    vectors: int = 10
    """Maximum number of steps of a row."""
    test_vectors: int = 20
    dial: ClassVar[str] = "vectors"

    @property
    def features(self) -> int:
        return 2 + 10 * self.gates

    @property
    def classes(self) -> int:
        return 2

    def count(self, size: int) -> int:
        return int((4 * sum(10**gates for gates in range(1, self.gates + 1))) ** size)

    def sample(self, random: torch.Generator, sizes: Tensor, length: int) -> Steps:
        rows = len(sizes)
        mask = torch.arange(length) < sizes[:, None]
        bits = torch.randint(2, (rows, length, 2), generator=random)  # b_0, b_1
        bits[:, 1:, 0] = 0
        used = torch.randint(1, self.gates + 1, (rows, length), generator=random)
        kinds = torch.randint(10, (rows, length, self.gates), generator=random)
        # The result of a step's gates for each of the four pairs (b_1, b_0), for all steps at once; then the steps in sequence.
        now, before = torch.tensor([0, 0, 1, 1]).expand(rows, length, 4), torch.tensor([0, 1, 0, 1]).expand(rows, length, 4)
        for i in range(self.gates):
            on = (i < used)[..., None]
            made = TABLE[kinds[:, :, i, None], 3 - 2 * now - before]
            now, before = torch.where(on, made, now), torch.where(on, now, before)
        answer, targets = bits[:, 0, 0], torch.empty(rows, length, dtype=torch.long)
        for step in range(length):
            answer = now[:, step].gather(1, (2 * bits[:, step, 1] + answer)[:, None])[:, 0]
            targets[:, step] = answer
        on = (torch.arange(self.gates) < used[..., None]) & mask[..., None]
        chunks = torch.zeros(rows, length, self.gates, 10, dtype=torch.float32).scatter_(3, kinds[..., None], on[..., None].float())
        x = torch.cat([bits * mask[..., None], chunks.flatten(2)], dim=2)
        return Steps(x, targets.masked_fill(~mask, IGNORED), mask, used * mask)
