"""All combinations of parts that cannot work, in one table; checked before any weight is allocated, with the reason and a fix."""

from __future__ import annotations

from formers.core import FormersError
from formers.model.check.attention import ATTENTION
from formers.model.check.inputs import INPUTS
from formers.model.check.refusal import Refusal
from formers.model.check.stack import STACK
from formers.model.spec import Spec

__all__ = ["REFUSALS", "Refusal", "check"]

REFUSALS: tuple[Refusal, ...] = (*INPUTS, *ATTENTION, *STACK)
"""In the order in which they are checked; the first that applies is reported."""


def check(spec: Spec) -> None:
    """Raises FormersError, with one sentence, for a spec that cannot work."""
    for refusal in REFUSALS:
        if refusal.when(spec):
            raise FormersError(refusal.message(spec))
    for _, pattern in spec.layers:
        pattern.of(spec.extra + spec.length)  # raises FormersError if the row is too long for the pattern
    if spec.encoder is not None:
        source = spec.encoder
        if source.vocab is None and source.features is None:
            if source.dim != spec.dim:
                raise FormersError(f"an encoder of dim={source.dim} cannot use its decoder's embedding of dim={spec.dim}: give it vocab.")
            source = source.replace(vocab=spec.vocab)
        check(source)
