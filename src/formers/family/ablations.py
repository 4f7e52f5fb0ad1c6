"""What a Transformer is without one of its parts: the lecture's necessities and tricks (CS224N), each taken away by itself.

An ablation is a function from a spec to a spec, which changes what its name says and nothing else. What a spec does not have cannot be
taken away: that is refused.
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
    """Nothing is added to the tokens that tells where they stand: a row is a bag of them, but for what a mask tells."""
    if not spec.position.absolute:
        raise _lacks(spec, "no positions that are added to its tokens")
    if isinstance(spec.position, Coordinate):  # which tell the depth step, too, and go on doing so
        return spec.replace(position=Coordinate(place="none", step=spec.position.step))
    return spec.replace(position=NoPosition())


def without_feed_forward(spec: Spec) -> Spec:
    """Attention alone: averages of averages, without a non-linearity but the softmax."""
    if isinstance(spec.feedforward, NoFeedForward):
        raise _lacks(spec, "no feed-forward network")
    return spec.replace(feedforward=NoFeedForward())


def without_mask(spec: Spec) -> Spec:
    """Every token sees those it is to predict.

    A language model over Full is refused elsewhere, and rightly. Here the head says that it does not write (MaskedLM, which has the same
    weights and the same loss), and whoever judges it as a language model must put the mask back.
    """
    if not all(isinstance(pattern, Causal) for _, pattern in spec.layers) or type(spec.head) is not LanguageModel:
        raise _lacks(spec, "no causal mask over all tokens with a plain softmax behind it")
    if _dot_product(spec) is None or isinstance(spec.feedforward, SeparableConv):
        raise _lacks(spec, "an order that is in its weights, too, and not in a mask alone")
    return spec.replace(pattern=Full(), head=MaskedLM(**dict(spec.head)))


def without_residual(spec: Spec) -> Spec:
    """The norms stay, and a sublayer's answer replaces the stream instead of joining it."""
    norms = {name: value for name, value in spec.residual if name in NormOnly.model_fields}
    return spec.replace(residual=NormOnly(of=_has_both(spec), **norms))


def without_norm(spec: Spec) -> Spec:
    """The residual connections stay, and nothing is normalised."""
    return spec.replace(residual=Plain(of=_has_both(spec)))


def without_scaling(spec: Spec) -> Spec:
    """Dot products enter the softmax as they are, as large as heads are wide."""
    attention = _dot_product(spec)
    if attention is None or not attention.scaled:
        raise _lacks(spec, "no scaled dot-product attention")
    return spec.replace(attention=attention.replace(scaled=False))


def with_one_head(spec: Spec) -> Spec:
    """One head as wide as all of them: as many parameters, one softmax a layer."""
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
"""By the name of what is taken away."""


def _dot_product(spec: Spec) -> DotProduct | None:
    """The dot-product attention that all layers have; None where one has another attention."""
    kinds = set(spec.attention.kinds)
    only = kinds.pop()
    return only if not kinds and isinstance(only, DotProduct) else None


def _has_both(spec: Spec) -> Literal["pre", "post"]:
    """Where the norm of a residual connection stands."""
    if not isinstance(spec.residual, PreNorm | PostNorm):
        raise _lacks(spec, f"the residual {type(spec.residual).__name__}, of which norm and sum cannot be taken apart")
    return "pre" if isinstance(spec.residual, PreNorm) else "post"


def _lacks(spec: Spec, what: str) -> FormersError:
    return FormersError(f"{spec.name or 'this model'} has {what}, so that nothing can be taken away: leave this ablation out.")
