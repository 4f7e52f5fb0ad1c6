"""Ponder times of the evaluated tokens (ACT): the mean of N and of R, and the share of the maximum number of steps that is saved.

For models without adaptive computation time nothing is recorded or computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from formers.core import Watch
from formers.core.context import ENCODER
from formers.core.host import to_host
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

    def figures(self, watch: Watch | None) -> dict[str, Tensor]:
        """What was recorded, as tensors that `update` needs on the host, by name: N and R of each stack, layer and token."""
        if watch is None:
            return {}
        notes = {(side, name): watch.notes[side + name] for side in self.most for name in (STEPS, REMAINDER)}
        return {f"{side}{name} {step}": value for (side, name), found in notes.items() for step, value in found.items()}

    def update(self, batch: Mapping[str, Tensor], out: Output, watch: Watch, figures: Mapping[str, Tensor] | None = None) -> None:
        """Adds the recorded batch; padding takes 0 steps and is not counted as a token.

        figures: those of `figures(watch)` on the host; they are copied if not given.
        """
        here = to_host(self.figures(watch)) if figures is None else figures
        for side in self.most:
            for step in watch.notes[side + STEPS]:
                taken = here[f"{side}{STEPS} {step}"]
                self.sums[side + STEPS] += float(taken.sum())
                self.sums[side + REMAINDER] += float(here[f"{side}{REMAINDER} {step}"].sum())
                self.sums[side + TOKENS] += int((taken > 0).sum())

    def results(self) -> dict[str, Any]:
        """For each stack with ACT: mean steps, their limit, the mean remainder, and the share of the limit that is saved."""
        made: dict[str, Any] = {}
        for side, most in self.most.items():
            steps, remainder = (self.sums[side + name] / max(self.sums[side + TOKENS], 1) for name in (STEPS, REMAINDER))
            found = {"ponder_steps": steps, "ponder_limit": most, "ponder_remainder": remainder, "ponder_saved": 1 - steps / most}
            made |= {SIDES[side] + name: value for name, value in found.items()}
        return made
