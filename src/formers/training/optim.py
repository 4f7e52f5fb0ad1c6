"""Optimisers and learning-rate schedules.

m <- (1-b1) g + b1 m,  v <- (1-b2) g^2 + b2 v,  x <- x - rate m' / (sqrt v' + eps)      adamw; m', v' bias-corrected
v <- u v + g,          x <- x - rate v                                                  momentum (Polyak, 1964)           E39
s <- s + g^2,          x <- x - rate g / (sqrt s + eps)                                 adagrad (Duchi et al., 2011)      E38
x <- (1 - rate decay) x                                                                 before each, for matrices
g <- g min(1, c / |g|)                                                                  clip, and clip_each by parameter  E37

rate(s) = peak * min(u, 1) * shape                                                                               E20
shape   = 0.05 + 0.95 (1 + cos(pi p)) / 2 (cosine), 1 / sqrt(max(v, 1)) (inverse-sqrt), or 1 (constant)

With a budget in steps u = v = s / w, and p is the share of the budget spent; s counts from 1, and w is the warm-up in
steps, at most a tenth of the budget. With a budget in time and the share t of it spent, u = max(s / w, 10 t): the warm-up ends
after w steps or a tenth of the time, whichever comes first. The cosine then begins at a fifth, p = max(t - 0.2, 0) / 0.8, and
v = max(s / w, 5 t), so the peak is reached at any speed, also if the first evaluation, at a tenth, takes long. The inverse square
root is the 2017 paper's schedule, whose peak is d^-0.5 w^-0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from formers.training.config import Settings

WARM_SHARE = 0.1
"""The largest share of a budget in time that the warm-up takes."""
HELD_SHARE = 0.2
"""The share of a budget in time after which the rate falls."""
FLOOR = 0.05
"""The share of the peak that the cosine ends at."""
DECAY = "decay"
"""The key of the weight decay in parameter groups of optimisers without decoupled weight decay."""
EPSILON = 1e-10
"""Avoids a division by zero."""
CLIP_EPSILON = 1e-6
"""That of torch.nn.utils.clip_grad_norm_."""


def optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser of the settings; weight decay applies to the parameters that `decayed` names."""
    chosen = decayed(model)
    matrices = [p for name, p in model.named_parameters() if name in chosen]
    others = [p for name, p in model.named_parameters() if name not in chosen]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.beta2), fused=True)
    # These two of torch add the decay to the gradient, where momentum would multiply it; decoupled decay is the same for all.
    groups = [{"params": group["params"], DECAY: group["weight_decay"]} for group in groups]
    made: torch.optim.Optimizer
    if settings.optimizer == "momentum":
        made = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)  # E39
    else:
        made = torch.optim.Adagrad(groups, lr=settings.learning_rate)  # E38
    made.register_step_pre_hook(_decay)
    return made


def decayed(model: nn.Module) -> set[str]:
    """The names of the parameters with weight decay: matrices, but not tables of vectors.

    Vectors and numbers, such as biases and norms, are not decayed. A module whose own parameters are tables of vectors, or biases with
    more than one dimension, names them, or the `ParameterList` that holds them, in its attribute `undecayed`.
    """
    spared: set[int] = set()
    for module in model.modules():
        for name in getattr(module, "undecayed", ()):
            owned = getattr(module, name)
            spared.update(id(p) for p in (owned.parameters() if isinstance(owned, nn.Module) else (owned,)))
    return {name for name, p in model.named_parameters() if p.dim() >= 2 and id(p) not in spared}


@torch.no_grad()
def _decay(made: torch.optim.Optimizer, *_: object) -> None:
    """Applies decoupled weight decay before a step, as AdamW does."""
    for group in made.param_groups:
        if group[DECAY]:
            torch._foreach_mul_([p for p in group["params"] if p.grad is not None], 1 - group["lr"] * group[DECAY])


@torch.no_grad()
def clip(parameters: Iterable[Tensor], settings: Settings) -> Tensor:
    """Clips gradients as the settings say; returns their global norm before clipping, a number on their device, without reading it."""
    slopes = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(slopes))
    if settings.clip_each is None:
        # As torch.nn.utils.clip_grad_norm_, to the bit, whose foreach=True raises on MPS.
        norm = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(slopes, (settings.clip / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return norm
    torch._foreach_mul_(slopes, list((settings.clip_each / (norms + EPSILON)).clamp(max=1.0).unbind()))  # E37
    return norms.norm()


def rate(settings: Settings, step: int, progress: float) -> float:
    """The learning rate of a step (from 1), with the share `progress` of the budget spent."""
    warmup, progress = settings.warm_steps, min(progress, 1.0)
    warm = min(step / warmup, 1.0) if warmup else 1.0
    fall = math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    if settings.budget is None and warmup:
        warm = min(max(warm, progress / WARM_SHARE), 1.0)
        fall = min(fall, math.sqrt(HELD_SHARE / max(progress, HELD_SHARE)))
        progress = max(progress - HELD_SHARE, 0.0) / (1 - HELD_SHARE)
    if settings.schedule == "cosine":
        shape = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2
    elif settings.schedule == "inverse-sqrt":
        shape = fall
    else:
        shape = 1.0
    return settings.learning_rate * warm * shape  # E20
