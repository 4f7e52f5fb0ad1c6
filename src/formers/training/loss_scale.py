"""The scale of the loss in fp16, which keeps small gradients from vanishing (Micikevicius et al., 2018).

loss' = s loss,  g = g' / s          s halves after a gradient that is not finite, and doubles after 2,000 steps in a row with finite ones

The rules and the stored state are those of torch.amp.GradScaler. It reads on its own whether a gradient is finite, which waits for the
device; here the trainer says so, from the one read of its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

INITIAL = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
INTERVAL = 2000
"""Steps with finite gradients after which the scale grows."""


class LossScale:
    """The scale and the number of finite steps since it changed; if not enabled, the scale is 1 for good."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = INITIAL if enabled else 1.0
        self.finite_steps = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss multiplied by the scale."""
        return loss * self.scale if self.enabled else loss

    @torch.no_grad()
    def unscale(self, parameters: Iterable[Tensor]) -> None:
        """Divides the gradients by the scale, in place."""
        slopes = [p.grad for p in parameters if p.grad is not None]
        if self.enabled and slopes:
            torch._foreach_mul_(slopes, 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """Changes the scale after a step, whose gradient is finite or not."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self.finite_steps = self.scale * BACKOFF, 0
            return
        self.finite_steps += 1
        if self.finite_steps == INTERVAL:
            self.scale, self.finite_steps = self.scale * GROWTH, 0

    def state_dict(self) -> dict[str, Any]:
        """The state in the format of GradScaler; empty if not enabled."""
        if not self.enabled:
            return {}
        rules = {"growth_factor": GROWTH, "backoff_factor": BACKOFF, "growth_interval": INTERVAL}
        return {"scale": self.scale, **rules, "_growth_tracker": self.finite_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state, also one that GradScaler wrote."""
        if self.enabled and state:
            self.scale, self.finite_steps = float(state["scale"]), int(state["_growth_tracker"])
