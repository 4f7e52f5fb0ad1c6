"""Options that every member has besides those of its recipe: they change the spec of the recipe."""

from __future__ import annotations

from pydantic import PositiveFloat

from formers.core import FormersError
from formers.model import Spec


def adjusted(
    spec: Spec, *, norm_epsilon: PositiveFloat | None = None, final_norm: bool | None = None, output_bias: bool | None = None
) -> Spec:
    """The spec with other norms, those of its encoder too, and with or without a bias of its tokens' logits; None changes nothing.

    `norm_epsilon` is added to the variance in every norm; `final_norm` is whether there is a norm between the last block and the head.
    """
    norms = {"epsilon": norm_epsilon, "final": final_norm}
    spec = _with_norms(spec, {name: value for name, value in norms.items() if value is not None})
    if output_bias is None:
        return spec
    if "bias" not in type(spec.head).model_fields:
        raise FormersError(
            f"output_bias={output_bias} is for heads that predict tokens, and {type(spec.head).__name__} does not: leave output_bias out."
        )
    return spec.replace(head=spec.head.replace(bias=output_bias))


def _with_norms(spec: Spec, changes: dict[str, float | bool]) -> Spec:
    if not changes:
        return spec
    residual = spec.residual
    for name, option in (("epsilon", "norm_epsilon"), ("final", "final_norm")):
        if name in changes and name not in type(residual).model_fields:
            raise FormersError(
                f"{option}={changes[name]} is for LayerNorms, and {type(residual).__name__} has none: leave {option} out, or use norm=pre."
            )
    encoder = None if spec.encoder is None else _with_norms(spec.encoder, changes)
    return spec.replace(residual=residual.replace(**changes), encoder=encoder)
