"""How long the tokens of judged data think: the mean of N and of R over all of them, and the share of the most steps that is saved.

Where nothing decides by itself how many steps it takes, nobody looks on, and nothing is computed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from formers.core import Watch
from formers.core.halting import REMAINDER, STEPS
from formers.core.stream import ENCODER
from formers.model import Output, Spec

SIDES = {"": "", ENCODER: "encoder_"}
"""How the names of notes and of figures begin, by stack."""
TOKENS = "tokens"


class Pondered:
    """Sums of N and R over the tokens that a model has read, by stack; they add up over processes."""

    def __init__(self, spec: Spec) -> None:
        stacks = {"": spec, ENCODER: spec.encoder}
        self.most = {side: stack.ponders for side, stack in stacks.items() if stack is not None and stack.ponders is not None}
        """The most steps of each stack that ponders."""
        self.sums = {side + name: 0.0 for side in self.most for name in (STEPS, REMAINDER, TOKENS)}

    def watch(self) -> Watch | None:
        """Who looks on while a batch is read; None where nothing ponders. Tokens that have halted are skipped all the same."""
        return Watch(only=(STEPS, REMAINDER)) if self.most else None

    def judge(self, batch: Mapping[str, Tensor], out: Output, watch: Watch) -> None:
        """Adds a batch that was looked on; padding thinks 0 steps, and is no token."""
        for side in self.most:
            for step, taken in watch.notes[side + STEPS].items():
                self.sums[side + STEPS] += float(taken.sum())
                self.sums[side + REMAINDER] += float(watch.notes[side + REMAINDER][step].sum())
                self.sums[side + TOKENS] += int((taken > 0).sum())

    def figures(self) -> dict[str, Any]:
        """For each stack that ponders: mean steps, their limit, the mean remainder, and the share of the limit that is saved."""
        made: dict[str, Any] = {}
        for side, most in self.most.items():
            steps, remainder = (self.sums[side + name] / max(self.sums[side + TOKENS], 1) for name in (STEPS, REMAINDER))
            told = {"ponder_steps": steps, "ponder_limit": most, "ponder_remainder": remainder, "ponder_saved": 1 - steps / most}
            made |= {SIDES[side] + name: value for name, value in told.items()}
        return made
