"""Adaptive attention span (Sukhbaatar et al., 2019): each head learns how far back it attends; keys beyond its span are not computed.

Equations E60-E64; docs/adaptive-span.md.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveInt

from formers.attention import DotProduct
from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.heads import LanguageModel
from formers.memory import Recurrence
from formers.model import Spec
from formers.patterns import Local
from formers.position import NoPosition
from formers.score import DynamicSpan, FixedSpan, Score, Span

# The authors' enwik8, 12 layers: 38 million parameters. Their dropout is on the weights of attention, and inside the feed-forward network,
# where ours is on the outputs of sublayers.
BASE: dict[str, Any] = {
    "dim": 512, "heads": 8, "layers": 12, "hidden": 2048, "length": 512, "span": 8192, "ramp": 32, "span_penalty": 5e-7, "dropout": 0.3,
    "attention_dropout": 0.3, "norm": "post", "activation": "relu", "tied": False,
}  # fmt: skip
# Their 24 layers: 209 million parameters.
LARGE: dict[str, Any] = {
    **BASE, "dim": 768, "layers": 24, "hidden": 4096, "dropout": 0.4, "attention_dropout": 0.4,
}  # fmt: skip
_PAPER: dict[str, Any] = {
    "batch": 64, "optimizer": "adagrad", "learning_rate": 0.07, "schedule": "constant", "warmup": 32_000, "weight_decay": 0.0,
    "clip_each": 0.03,
}  # fmt: skip
TRAINING: dict[str, dict[str, Any]] = {"": {"learning_rate": 2e-3}, "base": _PAPER, "large": _PAPER}


def adaptive_span(
    *,
    vocab: PositiveInt,
    sizes: TransformerSizes = TransformerSizes(length=128),
    span: PositiveInt = 512,
    ramp: PositiveInt = 32,
    span_penalty: NonNegativeFloat = 2e-6,
    init: Annotated[float, Field(ge=0.0, le=1.0)] | None = None,
    dynamic: bool = False,
    fixed: bool = False,
    memory: PositiveInt | None = None,
    tied: bool = True,
) -> Spec:
    """Each head attends to the keys within its learned span, at most `span` tokens before the query, without the query itself.

    Spans start at the share `init` of the maximum. With `dynamic` every token has its own spans; with `fixed` all stay at the maximum.
    """
    if ramp < 2 and not fixed:
        raise FormersError(f"ramp={ramp} leaves a span of 0 without a key, so that it could never grow: give at least 2.")
    score: Score
    if fixed:
        if dynamic or init is not None:
            given = "dynamic=True" if dynamic else f"init={init}"
            raise FormersError(f"fixed=True keeps every span at span={span}, and {given} is for learned spans: leave one of them out.")
        score = FixedSpan(span=span)
    elif dynamic:
        score = DynamicSpan(span=span, ramp=ramp, penalty=span_penalty, **({} if init is None else {"init": init}))
    else:
        score = Span(span=span, ramp=ramp, penalty=span_penalty, init=init or 0.0)
    return Spec(
        name="adaptive-span", vocab=vocab, **sizes.fields, position=NoPosition(), pattern=Local(window=span, include_self=False),
        attention=DotProduct(bias=False), score=score, memory=Recurrence(length=span if memory is None else memory),
        residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers), feedforward=sizes.feedforward,
        head=LanguageModel(tied=tied),
    )  # fmt: skip
