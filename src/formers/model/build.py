"""From a spec to its model."""

from __future__ import annotations

from formers.core import FormersError
from formers.model.check import check
from formers.model.model import Model, StackModel
from formers.model.seq2seq import Seq2Seq
from formers.model.spec import Spec


def build(spec: Spec) -> Model:
    """The model of a spec, freshly initialised; a spec that cannot work is refused before a weight is allocated."""
    if not isinstance(spec, Spec):
        raise FormersError(f"{spec!r} is not a spec: give what formers.spec returns, or use formers.create for a member's name.")
    check(spec)
    return StackModel(spec) if spec.encoder is None else Seq2Seq(spec)
