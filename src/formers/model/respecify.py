"""The same weights under another spec: a memory of another length, another pattern, another clamp."""

from __future__ import annotations

import torch

from formers.core import FormersError
from formers.model.build import build
from formers.model.model import Model
from formers.model.spec import Spec


def respecified(model: Model, spec: Spec) -> Model:
    """The model of another spec with the weights of this one: shared, not copied, so that it learns as this one does.

    The model itself where the spec is its own; a spec whose weights have other names or shapes is refused.
    """
    if spec == model.spec:
        return model
    with torch.random.fork_rng(devices=()):  # weights that are drawn and thrown away must not move what is drawn next
        other = build(spec)
    weights, wanted = model.state_dict(keep_vars=True), other.state_dict(keep_vars=True)
    for name in sorted(weights.keys() | wanted.keys()):
        have, want = weights.get(name), wanted.get(name)
        if have is None or want is None or have.shape != want.shape:
            sizes = [tuple(t.shape) if t is not None else "nothing" for t in (have, want)]
            raise FormersError(
                f"the model has {sizes[0]} for {name!r} where the other spec asks for {sizes[1]}: change only what has no weights, "
                "such as memory, pattern or clamp."
            )
        want.requires_grad_(have.requires_grad)  # which torch would make the shared weight's
    other.load_state_dict(weights, assign=True)
    other.tokenizer, other.labels = model.tokenizer, model.labels
    return other.train(model.training)
