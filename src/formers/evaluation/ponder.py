"""Ponder times of the evaluated tokens (ACT): the mean of N and of R, and the share of the maximum number of steps that is saved.

For models without adaptive computation time nothing is recorded or computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from formers.core import Watch
from formers.core.context import ENCODER
from formers.depth.halting import REMAINDER, STEPS
from formers.model import Output, Spec

SIDES = {"": "", ENCODER: "encoder_"}
"""The prefix of metric names, by stack."""
TOKENS = "tokens"


class PonderMetrics:
    """Sums of N and R over the tokens of each stack; they can be added over processes."""

    def __init__(self, spec: Spec) -> None:
        stacks = {"": spec, ENCODER: spec.encoder}
        self.most = {side: stack.ponders for side, stack in stacks.items() if stack is not None and stack.ponders is not None}
        """The maximum number of steps of each stack with ACT."""
        self.sums = {side + name: 0.0 for side in self.most for name in (STEPS, REMAINDER, TOKENS)}

    def watch(self) -> Watch | None:
        """Records the ponder times of a forward pass; None without ACT. Halted tokens are still skipped."""
        return Watch(only=(STEPS, REMAINDER)) if self.most else None

    def update(self, batch: Mapping[str, Tensor], out: Output, watch: Watch) -> None:
        """Adds the recorded batch; padding takes 0 steps and is not counted as a token."""
        for side in self.most:
            for step, taken in watch.notes[side + STEPS].items():
                self.sums[side + STEPS] += float(taken.sum())
                self.sums[side + REMAINDER] += float(watch.notes[side + REMAINDER][step].sum())
                self.sums[side + TOKENS] += int((taken > 0).sum())

    def results(self) -> dict[str, Any]:
        """For each stack with ACT: mean steps, their limit, the mean remainder, and the share of the limit that is saved."""
        made: dict[str, Any] = {}
        for side, most in self.most.items():
            steps, remainder = (self.sums[side + name] / max(self.sums[side + TOKENS], 1) for name in (STEPS, REMAINDER))
            found = {"ponder_steps": steps, "ponder_limit": most, "ponder_remainder": remainder, "ponder_saved": 1 - steps / most}
            made |= {SIDES[side] + name: value for name, value in found.items()}
        return made
