"""Ablations of a Transformer: each removes one of the necessities and tricks of the CS224N lecture.

An ablation is a function from a spec to a spec, which changes what its name says and nothing else. It raises if the spec does not have
the part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from formers.attention import DotProduct
from formers.core import FormersError
from formers.feedforward import NoFeedForward, SeparableConv
from formers.heads import LanguageModel, MaskedLM
from formers.model import Spec
from formers.patterns import Causal, Full
from formers.position import Coordinate, NoPosition
from formers.residual import NormOnly, Plain, PostNorm, PreNorm


def without_positions(spec: Spec) -> Spec:
    """No positional encoding: a row is a bag of tokens, except for the order that a mask gives."""
    if not spec.position.absolute:
        raise _lacks(spec, "no positional encoding that is added to its tokens")
    if isinstance(spec.position, Coordinate):  # which also encode the depth step, and continue to do so
        return spec.replace(position=Coordinate(place="none", step=spec.position.step))
    return spec.replace(position=NoPosition())


def without_feed_forward(spec: Spec) -> Spec:
    """Attention only: averages of averages, without a non-linearity but the softmax."""
    if isinstance(spec.feedforward, NoFeedForward):
        raise _lacks(spec, "no feed-forward network")
    return spec.replace(feedforward=NoFeedForward())


def without_mask(spec: Spec) -> Spec:
    """Every token attends to all tokens, including those it predicts.

    A language model over Full is an error elsewhere. Here the head is MaskedLM, which has the same weights and the same loss and does not
    generate; to evaluate it as a language model, restore the mask.
    """
    if not all(isinstance(pattern, Causal) for _, pattern in spec.layers) or type(spec.head) is not LanguageModel:
        raise _lacks(spec, "no causal mask over all tokens with a plain softmax")
    if _dot_product(spec) is None or isinstance(spec.feedforward, SeparableConv):
        raise _lacks(spec, "an order in its weights, not only in its mask")
    return spec.replace(pattern=Full(), head=MaskedLM(**dict(spec.head)))


def without_residual(spec: Spec) -> Spec:
    """The norms stay; the output of a sublayer replaces its input instead of being added to it."""
    norms = {name: value for name, value in spec.residual if name in NormOnly.model_fields}
    return spec.replace(residual=NormOnly(of=_has_both(spec), **norms))


def without_norm(spec: Spec) -> Spec:
    """The residual connections stay; the norms are removed."""
    return spec.replace(residual=Plain(of=_has_both(spec)))


def without_scaling(spec: Spec) -> Spec:
    """Dot products are not divided by the square root of the head dimension."""
    attention = _dot_product(spec)
    if attention is None or not attention.scaled:
        raise _lacks(spec, "no scaled dot-product attention")
    return spec.replace(attention=attention.replace(scaled=False))


def with_one_head(spec: Spec) -> Spec:
    """One head with the width of all heads: the same number of parameters, one softmax per layer."""
    if spec.heads == 1:
        raise _lacks(spec, "one head already")
    sizes = spec.sizes
    head_dim, value_dim = sizes.heads * sizes.head_dim, sizes.heads * sizes.value_dim
    return spec.replace(heads=1, head_dim=head_dim, value_dim=value_dim)


ABLATIONS: dict[str, Callable[[Spec], Spec]] = {
    "positions": without_positions,
    "feed-forward": without_feed_forward,
    "mask": without_mask,
    "residual": without_residual,
    "norm": without_norm,
    "scaling": without_scaling,
    "heads": with_one_head,
}
"""Keyed by the name of the removed part."""


def _dot_product(spec: Spec) -> DotProduct | None:
    """The dot-product attention of all layers; None if a layer has another attention."""
    kinds = set(spec.attention.kinds)
    only = kinds.pop()
    return only if not kinds and isinstance(only, DotProduct) else None


def _has_both(spec: Spec) -> Literal["pre", "post"]:
    """The position of the norm in the residual connection."""
    if not isinstance(spec.residual, PreNorm | PostNorm):
        raise _lacks(spec, f"the residual {type(spec.residual).__name__}, whose norm and sum cannot be separated")
    return "pre" if isinstance(spec.residual, PreNorm) else "post"


def _lacks(spec: Spec, what: str) -> FormersError:
    return FormersError(f"{spec.name or 'this model'} has {what}, so there is nothing to remove: leave this ablation out.")
