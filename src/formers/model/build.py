"""From a spec to its model."""

from __future__ import annotations

from formers.model.check import check
from formers.model.model import Model, StackModel
from formers.model.seq2seq import Seq2Seq
from formers.model.spec import Spec


def build(spec: Spec) -> Model:
    """The model of a spec, freshly initialised; a spec that cannot work is refused before a weight is allocated."""
    check(spec)
    return StackModel(spec) if spec.encoder is None else Seq2Seq(spec)
