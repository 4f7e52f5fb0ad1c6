"""A whole block: attention and feed-forward, each with its residual connection and norm."""

from __future__ import annotations

from pydantic import PositiveInt

from formers.attention import Attention
from formers.core import FormersError, nearest
from formers.core.part import checked
from formers.feedforward import Dense
from formers.layers.base import LENGTH, BlockLayer, layer_spec
from formers.patterns import Full, Pattern
from formers.residual import PostNorm, PreNorm, Residual
from formers.residual import Reversible as ReversibleResidual
from formers.score import Score

NORMS: dict[str, Residual] = {"pre": PreNorm(), "post": PostNorm()}


class TransformerBlock(BlockLayer):
    """x = residual(x, Attention(x)); x = residual(x, FFN(x)): the first block of any member.

    hidden: the width of the feed-forward; 4 dim by default. norm: "pre" (E12), "post" (E11), or a residual such as Gated(). A stack of
    pre-norm blocks needs a final nn.LayerNorm, which is not part of the block. dropout: on the outputs of the sublayers.
    attention, score: other parts of the family, such as LSH() and Relative(). memory: the number of past inputs in a state, as in
    RelativeAttention.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        pattern: Pattern = Full(),
        norm: str | Residual = "pre",
        *,
        activation: str = "gelu",
        attention: Attention | None = None,
        score: Score | None = None,
        memory: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        length: int = LENGTH,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        residual = NORMS.get(norm) if isinstance(norm, str) else norm
        if residual is None:
            raise FormersError(f"norm={norm!r} is not known: {nearest(norm, NORMS)}")
        if isinstance(residual, ReversibleResidual):
            raise FormersError("a block with norm=Reversible() has two inputs: use formers.layers.Reversible(f, g).")
        dim = checked("dim", PositiveInt, dim)
        feedforward = Dense(hidden=4 * dim if hidden is None else hidden, activation=activation)
        super().__init__(
            layer_spec(
                dim, heads, pattern, attention=attention, score=score, memory=memory, residual=residual, feedforward=feedforward,
                head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout, attention_dropout=attention_dropout,
            )
        )  # fmt: skip
