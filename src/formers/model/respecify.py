"""A model with the same weights and another spec: another memory length, pattern or clamp."""

from __future__ import annotations

import torch

from formers.core import FormersError
from formers.model.build import build
from formers.model.model import Model
from formers.model.spec import Spec
from formers.model.weights import mismatch


def respecified(model: Model, spec: Spec) -> Model:
    """The model of another spec with the weights of this one: shared, not copied, so that training one trains both.

    Returns the model itself if the spec is the same; raises FormersError if the weights of the spec have other names or shapes.
    """
    if spec == model.spec:
        return model
    with torch.device("meta"):  # no memory for its own weights
        other = build(spec)
    weights, wanted = model.state_dict(keep_vars=True), other.state_dict(keep_vars=True)
    wrong = mismatch(weights, wanted)
    if wrong is not None:
        raise FormersError(
            f"the model has {wrong.have} for {wrong.name!r} but the other spec needs {wrong.want}: change only parts without weights, "
            "such as memory, pattern or clamp."
        )
    for name, weight in wanted.items():
        weight.requires_grad_(weights[name].requires_grad)  # otherwise torch would change that of the shared weight
    other.load_state_dict(weights, assign=True)
    other.tokenizer, other.labels = model.tokenizer, model.labels
    return other.train(model.training)
