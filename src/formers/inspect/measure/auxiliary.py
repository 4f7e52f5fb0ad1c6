"""Which position of which layer predicts which tokens under auxiliary losses, and with what weight (Al-Rfou et al., 2018).

What is asked is what the losses of training do themselves (heads/auxiliary.py): which layers they tap, with what weights, and which
targets a position has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from formers.core import IGNORED, FormersError
from formers.heads.auxiliary import Auxiliary, AuxiliaryLosses, future
from formers.model import Spec


class Predictions(NamedTuple):
    """What is predicted when a share of the training is done."""

    weights: list[float]
    """By layer, the shallowest first: that of its next token in the loss; 0 where a layer predicts nothing."""
    tokens: list[list[list[int]]]
    """By layer and position: the tokens that are predicted; token 0 stands at the first position."""


def predictions(spec: Spec, positions: int, progress: float) -> Predictions:
    """What the positions of a row of so many tokens predict in every layer."""
    losses = auxiliary_losses(spec)
    goals = [future(torch.arange(1, positions + 1)[None], ahead, None)[0].tolist() for ahead in range(losses.targets)]
    tapped = losses.taps(progress)
    found = losses.weights(progress).tolist() if losses.ends else []
    weights = [found[layer] if layer in tapped else 0.0 for layer in range(losses.last - 1)] + [1.0]
    asked = [[goal[i] for goal in goals if goal[i] != IGNORED] for i in range(positions)]
    return Predictions(weights, [asked if weight else [[]] * positions for weight in weights])


def auxiliary_losses(spec: Spec) -> AuxiliaryLosses:
    """The auxiliary losses of a spec, without memory for their weights."""
    if not isinstance(spec.head, Auxiliary):
        raise FormersError(
            f"{spec.name or 'this spec'} has no auxiliary losses: use character-transformer, or the head Auxiliary in a spec."
        )
    with torch.device("meta"):
        losses = spec.head.build_auxiliary(spec.sizes, spec.vocab)
    if not isinstance(losses, AuxiliaryLosses):
        raise FormersError(f"layers={spec.depth.steps} and targets=1 leave no auxiliary loss: give more layers, or more targets.")
    return losses
