"""What a model is for, and the verb that uses it; a model of another kind is refused with that verb."""

from __future__ import annotations

from formers.core import FormersError
from formers.heads import Classify, MaskedLM, PolicyValue
from formers.model import Model

VERBS = {"classify": "gives no labels", "translate": "translates nothing"}
"""By verb: what a model of another kind does not do."""


def verb_of(model: Model) -> tuple[str, str]:
    """What a model does, in words, and the verb for it."""
    spec = model.spec
    if isinstance(spec.head, PolicyValue):
        return "is an agent", "play"
    if spec.image is not None:
        return "is a model of images", "generate"
    if spec.encoder is not None:
        return "writes a target for a source", "translate"
    if isinstance(spec.head, Classify):
        return ("answers questions about stories", "eval") if spec.fact is not None else ("gives a text a label", "classify")
    if isinstance(spec.head, MaskedLM):
        return "fills in masked tokens, and learns labels with `formers train --from RUN --data LABELLED`", "eval"
    return ("writes text", "generate") if spec.head.generates else ("gives every token a class", "eval")


def refuse_other(model: Model, verb: str, name: str = "RUN") -> None:
    """Refuses a model that a verb is not for, with the verb that is for it."""
    if not isinstance(model, Model):
        raise FormersError(f"the model is a {type(model).__name__}: give what formers.load, formers.create or formers.build returns.")
    does, other = verb_of(model)
    if other != verb:
        who = model.spec.name or "this model"
        raise FormersError(f"{who} {VERBS[verb]}: it {does}; use `formers {other} {name}`.")
