"""The optimisers and their learning rate.

m <- (1-b1) g + b1 m,  v <- (1-b2) g^2 + b2 v,  x <- x - rate m' / (sqrt v' + eps)      adamw; m', v' without their start at 0
v <- u v + g,          x <- x - rate v                                                  momentum (Polyak, 1964)           E39
s <- s + g^2,          x <- x - rate g / (sqrt s + eps)                                 adagrad (Duchi et al., 2011)      E38
x <- (1 - rate decay) x                                                                 before each, for matrices
g <- g min(1, c / |g|)                                                                  clip, and clip_each by parameter  E37

rate(s) = peak * min(s / w, 1) * shape                                                                           E20
shape   = 0.05 + 0.95 (1 + cos(pi p)) / 2 (cosine), sqrt(w / max(s, w)) (inverse-sqrt), or 1 (constant)

s counts from 1, w is the warm-up (at most a tenth of a budget in steps), and p is the share of the budget that has been spent, in
steps or in time. The inverse square root is the 2017 paper's schedule, whose peak is d^-0.5 w^-0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from formers.training.config import Settings

FLOOR = 0.05
"""The share of the peak that the cosine ends at."""
UNDECAYED = ("embedding", "position", "bias")
"""Words in the names of weights that are no matrices, though they may look like some."""
DECAY = "decay"
"""What a group of weights calls its decay where the optimiser knows of none."""
EPSILON = 1e-10
"""So that a gradient of 0 stays one."""


def optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser of the settings; it decays matrices only: not biases, norms or the vectors of positions and tokens."""
    decayed = [p for n, p in model.named_parameters() if p.dim() >= 2 and not any(word in n for word in UNDECAYED)]
    chosen = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.beta2), fused=True)
    # These two of torch add the decay to the gradient, where momentum would multiply it; here it means the same for all.
    groups = [{"params": group["params"], DECAY: group["weight_decay"]} for group in groups]
    made: torch.optim.Optimizer
    if settings.optimizer == "momentum":
        made = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)  # E39
    else:
        made = torch.optim.Adagrad(groups, lr=settings.learning_rate)  # E38
    made.register_step_pre_hook(_decay)
    return made


@torch.no_grad()
def _decay(made: torch.optim.Optimizer, *_: object) -> None:
    """Lets matrices lose their share, as AdamW does, before a step."""
    for group in made.param_groups:
        if group[DECAY]:
            torch._foreach_mul_([p for p in group["params"] if p.grad is not None], 1 - group["lr"] * group[DECAY])


@torch.no_grad()
def clip(parameters: Iterable[Tensor], settings: Settings) -> float:
    """Scales gradients down as the settings ask for; their norm, all together, before that."""
    there = [p for p in parameters if p.grad is not None]
    if settings.clip_each is None:
        return torch.nn.utils.clip_grad_norm_(there, settings.clip, foreach=True).item()
    slopes = [p.grad for p in there if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(slopes))
    torch._foreach_mul_(slopes, list((settings.clip_each / (norms + EPSILON)).clamp(max=1.0).unbind()))  # E37
    return norms.norm().item()


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
