"""The same weights under another spec: a memory of another length, another pattern, another clamp."""

from __future__ import annotations

import torch

from formers.core import FormersError
from formers.model.build import build
from formers.model.model import Model
from formers.model.spec import Spec
from formers.model.weights import mismatch


def respecified(model: Model, spec: Spec) -> Model:
    """The model of another spec with the weights of this one: shared, not copied, so that it learns as this one does.

    The model itself where the spec is its own; a spec whose weights have other names or shapes is refused.
    """
    if spec == model.spec:
        return model
    with torch.device("meta"):  # its own weights are never there
        other = build(spec)
    weights, wanted = model.state_dict(keep_vars=True), other.state_dict(keep_vars=True)
    wrong = mismatch(weights, wanted)
    if wrong is not None:
        raise FormersError(
            f"the model has {wrong.have} for {wrong.name!r} where the other spec asks for {wrong.want}: change only what has no weights, "
            "such as memory, pattern or clamp."
        )
    for name, weight in wanted.items():
        weight.requires_grad_(weights[name].requires_grad)  # which torch would make the shared weight's
    other.load_state_dict(weights, assign=True)
    other.tokenizer, other.labels = model.tokenizer, model.labels
    return other.train(model.training)
