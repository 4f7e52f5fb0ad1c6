"""The optimiser and its learning rate.

rate(s) = peak * min(s / w, 1) * shape                                                                           E20
shape   = 0.05 + 0.95 (1 + cos(pi p)) / 2 (cosine), sqrt(w / max(s, w)) (inverse-sqrt), or 1 (constant)

s counts from 1, w is the warm-up (at most a tenth of a budget in steps), and p is the share of the budget that has been spent, in
steps or in time. The inverse square root is the 2017 paper's schedule, whose peak is d^-0.5 w^-0.5.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from formers.training.config import Settings

FLOOR = 0.05
"""The share of the peak that the cosine ends at."""


def optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW that decays matrices only: not biases, norms or the vectors of positions and tokens."""
    decayed = [p for n, p in model.named_parameters() if p.dim() >= 2 and "embedding" not in n and "position" not in n]
    chosen = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.beta2), fused=True)


def rate(settings: Settings, step: int, progress: float) -> float:
    """The learning rate of a step (from 1), `progress` of the whole budget spent."""
    warmup = settings.warm_steps
    warm = min(step / warmup, 1.0) if warmup else 1.0
    if settings.schedule == "cosine":
        shape = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    elif settings.schedule == "inverse-sqrt":
        shape = math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    else:
        shape = 1.0
    return settings.learning_rate * warm * shape  # E20
