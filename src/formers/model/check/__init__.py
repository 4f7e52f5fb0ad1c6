"""Every combination that cannot work, in one table, refused before a weight is allocated, with the reason and the alternative."""

from __future__ import annotations

from formers.core import FormersError
from formers.model.check.attention import ATTENTION
from formers.model.check.inputs import INPUTS
from formers.model.check.refusal import Refusal
from formers.model.check.stack import STACK
from formers.model.spec import Spec

__all__ = ["REFUSALS", "Refusal", "check"]

REFUSALS: tuple[Refusal, ...] = (*INPUTS, *ATTENTION, *STACK)
"""In the order in which they are asked: the first that is met says why."""


def check(spec: Spec) -> None:
    """Refuses a spec that cannot work, with one sentence."""
    for refusal in REFUSALS:
        if refusal.when(spec):
            raise FormersError(refusal.says(spec))
    for _, pattern in spec.layers:
        pattern.of(spec.extra + spec.length)  # a pattern that ends before the row does says so
    if spec.encoder is not None:
        source = spec.encoder
        if source.vocab is None and source.features is None:
            if source.dim != spec.dim:
                raise FormersError(
                    f"an encoder of dim={source.dim} cannot read through its decoder's embedding of dim={spec.dim}: give it vocab."
                )
            source = source.replace(vocab=spec.vocab)
        check(source)
