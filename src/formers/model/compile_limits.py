"""Why torch.compile needs many graphs for a model: a warning at the start of a compiled training."""

from __future__ import annotations

from formers.model.spec import Spec
from formers.recurrent import Aligned, Pondering, Recurrent

LOOPS = (Aligned, Pondering, Recurrent)
"""Attentions that are loops over the tokens, which torch.compile unrolls: each length is then a graph."""


def compile_limits(spec: Spec) -> str | None:
    """Why a compiled step of a spec has more than two graphs, in one sentence; None if it has at most two for any lengths."""
    stacks = (spec,) if spec.encoder is None else (spec, spec.encoder)
    if any(isinstance(kind, LOOPS) for stack in stacks for kind in stack.attention.kinds):
        return (
            f"torch.compile unrolls the recurrent layers of {spec.name or 'this model'} over the tokens, so that every length of a row "
            "needs a graph and compiling takes long: leave --compile out"
        )
    return None
