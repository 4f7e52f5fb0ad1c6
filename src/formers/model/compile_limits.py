"""What torch.compile cannot do with a model: said where a compiled training begins."""

from __future__ import annotations

from formers.model.spec import Spec


def compile_limits(spec: Spec) -> str | None:
    """Why a compiled step of a spec has more than two graphs, in one sentence; None if it has at most two for any lengths."""
    if spec.attention.unrolled or (spec.encoder is not None and spec.encoder.attention.unrolled):
        return (
            f"torch.compile unrolls the recurrent layers of {spec.name or 'this model'} over the tokens, so that every length of a row is "
            "compiled anew and compiling takes long: leave --compile out"
        )
    return None
