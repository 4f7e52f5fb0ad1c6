"""Where the parameters of a model are, counted on its real module."""

from __future__ import annotations

import torch
from torch import nn

from formers.model import Model, Spec, build

PARTS = ("embedding", "attention", "cross-attention", "feed-forward", "norms", "head")
"""What every description counts, in this order; what a member has beside them follows."""

# The names that modules have in a model, and the part their parameters count as. Paths are read from the left, so that what a head
# is made of counts as the head; norms count as norms everywhere, and other weights of a residual (gates) have their own line.
HOMES = {
    "embedding": "embedding",
    "source_embedding": "embedding",
    "label_embedding": "embedding",
    "position": "positions",
    "extra": "extra vectors",
    "attention": "attention",
    "common": "attention",
    "common_score": "attention",
    "cross": "cross-attention",
    "feedforward": "feed-forward",
    "residual_attention": "residual",
    "residual_cross": "residual",
    "residual_feedforward": "residual",
    "final": "residual",
    "head": "head",
    "auxiliary": "training alone",
}


def weightless(spec: Spec) -> Model:
    """The model of a spec with all of its modules and no memory for their weights: the meta device."""
    with torch.device("meta"):
        return build(spec)


def parameter_parts(model: Model) -> dict[str, int]:
    """The number of parameters of each part of a model, shared ones counted once; they sum to `model.parameter_count()`."""
    counts = dict.fromkeys(PARTS, 0)
    for path, weight in model.named_parameters():
        owner, _, _ = path.rpartition(".")
        part = _part(path, model.get_submodule(owner))
        counts[part] = counts.get(part, 0) + weight.numel()
    return counts


def _part(path: str, owner: nn.Module) -> str:
    """The part that a parameter counts as, from its path and the module that holds it."""
    if "Norm" in type(owner).__name__:
        return "norms"
    return part_of(path.split("."))


def part_of(names: list[str]) -> str:
    """The part that a module counts as, from the names on its path."""
    return next((HOMES[name] for name in names if name in HOMES), "depth" if "depth" in names else "other")
