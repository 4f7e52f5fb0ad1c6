"""Attention layers without a residual connection and without a norm: y = Attention(x)."""

from __future__ import annotations

from typing import Literal

from formers.attention import LSH, DotProduct
from formers.core import FormersError
from formers.layers.base import LENGTH, BlockLayer, layer_spec
from formers.patterns import Causal, Full, Local, Pattern
from formers.score import DynamicSpan, FixedSpan, Relative, Span


class SelfAttention(BlockLayer):
    """Multi-head self-attention over a pattern (E3), as in the Transformer and the Sparse Transformer.

    bias: whether the projections have biases. dropout: on the attention weights. head_dim, value_dim: dim / heads by default.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern = Full(),
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        attention = DotProduct(bias=bias)
        super().__init__(
            layer_spec(dim, heads, pattern, attention=attention, head_dim=head_dim, value_dim=value_dim, attention_dropout=dropout)
        )


class LSHAttention(BlockLayer):
    """LSH attention with queries as keys (E92-E94), as in the Reformer; the pattern is Full() or Causal().

    length: the typical length of rows; by default there are two `buckets` per `chunk` of it. Rotations are drawn anew in each training
    call, from torch's generator; in evaluation, and if a state is given, they are fixed by `seed`. scaled: whether scores are divided by
    sqrt(head_dim); not by default, as in the member, because keys are normalised.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern = Full(),
        *,
        length: int = LENGTH,
        rounds: int = 2,
        chunk: int = 64,
        buckets: int | tuple[int, ...] | None = None,
        reach: Literal["chunk", "bucket"] = "bucket",
        evaluation_rounds: int | None = None,
        scaled: bool = False,
        seed: int = 0,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        attention = LSH(
            rounds=rounds, chunk=chunk, buckets=buckets, reach=reach, evaluation_rounds=evaluation_rounds, scaled=scaled, seed=seed,
            bias=bias,
        )  # fmt: skip
        super().__init__(
            layer_spec(
                dim, heads, pattern, attention=attention, length=length, head_dim=head_dim, value_dim=value_dim, attention_dropout=dropout
            )
        )


class RelativeAttention(BlockLayer):
    """Attention with relative positions (E51) and a memory (E50, E52), as in Transformer-XL.

    pattern: by default Causal() with a memory and Full() without.
    memory: the number of past inputs in a state. Keys and values are computed from them with the current weights, so that the weights get
    gradients from the memory; no gradient flows into it. None: the state contains keys and values, as in other layers.
    clamp: the largest distance; longer ones are clamped to it. The biases u and v belong to the layer.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern | None = None,
        *,
        memory: int | None = None,
        clamp: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        if pattern is None:
            pattern = Full() if memory is None else Causal()
        super().__init__(
            layer_spec(
                dim, heads, pattern, attention=DotProduct(bias=bias), score=Relative(clamp=clamp, untied=True), memory=memory,
                head_dim=head_dim, value_dim=value_dim, attention_dropout=dropout,
            )
        )  # fmt: skip


class AdaptiveSpanAttention(BlockLayer):
    """Attention with a learned span per head (E60-E64), at most `span` tokens back; a token does not see itself.

    kind: "learned" has one span per head, "dynamic" one per head and token, "fixed" has no trained span. penalty: the cost per position of
    span; it is added to `losses["span"]`. init: the initial span as a fraction of `span`. memory: the number of past inputs in a state;
    `span` by default. The first token of a row sees no key: its attention output is 0 before the output projection.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        span: int = 512,
        *,
        ramp: int = 32,
        penalty: float = 0.0,
        init: float | None = None,
        kind: Literal["learned", "dynamic", "fixed"] = "learned",
        memory: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        score = _span(span, ramp, penalty, init, kind)
        super().__init__(
            layer_spec(
                dim, heads, Local(window=score.span, include_self=False), attention=DotProduct(bias=bias), score=score,
                memory=score.span if memory is None else memory, head_dim=head_dim, value_dim=value_dim, attention_dropout=dropout,
            )
        )  # fmt: skip


def _span(span: int, ramp: int, penalty: float, init: float | None, kind: str) -> FixedSpan:
    """The score of a kind of span."""
    start = {} if init is None else {"init": init}
    if kind == "learned":
        return Span(span=span, ramp=ramp, penalty=penalty, **start)
    if kind == "dynamic":
        return DynamicSpan(span=span, ramp=ramp, penalty=penalty, **start)
    if kind != "fixed":
        raise FormersError(f"kind={kind!r} is not a kind of span: give 'learned', 'dynamic' or 'fixed'.")
    return FixedSpan(span=span)
