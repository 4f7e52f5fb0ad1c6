"""The specification of a model as one frozen value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from formers.attention import Attention, DotProduct
from formers.core import FormersError, Part, Raster, Sizes
from formers.core.initial import Law
from formers.depth import Depth
from formers.feedforward import FeedForward
from formers.heads import Head
from formers.inputs import Facts, Features, Input, InputSizes, Tokens
from formers.memory import Memory, NoMemory
from formers.patterns import Pattern
from formers.position import Position
from formers.residual import Residual
from formers.score import NoScore, Score

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
SHAPING = ("dim", "heads", "extra", "depth", "memory", "attention", "pattern", "position", "score", "residual", "feedforward")
"""The fields that a state depends on, beside the head widths and the encoder; not those for training, the head or the vocabulary."""


class Spec(Part):
    """One stack of blocks with its embedding and head; with `encoder`, the decoder of an encoder-decoder."""

    name: str = ""
    """The name of the member; only for display."""
    vocab: PositiveInt | None = None
    """Number of token ids; an encoder without one uses its decoder's embedding."""
    features: PositiveInt | None = None
    """Width of float inputs, instead of vocab."""
    input: Input = Tokens()
    """The input embedding; by default Features if `features` is given, else Tokens."""
    labels: PositiveInt | None = None
    """Number of classes for conditioning: the class of each row is then passed as `label`."""
    image: Raster | None = None
    """The generation order of the cells of an image, if the rows are images."""
    dim: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt | None = None
    """Width of a head's queries and keys; dim / heads by default."""
    value_dim: PositiveInt | None = None
    """Width of a head's values; head_dim by default."""
    length: PositiveInt
    """The length of training segments."""
    extra: NonNegativeInt = 0
    """Number of learned vectors before the tokens of every row; patterns count them as the first positions."""
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    embedding_scale: Literal["input", "output", "none"] = "input"
    """Where the embedding table is scaled: sqrt(dim) at the input, 1/sqrt(dim) at the logits, or not at all."""
    initialisation: Law = "xavier"
    """The distribution of initial weights; with "fan-in", the Sparse Transformer's, embeddings are small and an untied head starts at 0."""

    position: Position
    pattern: Pattern
    attention: Attention = DotProduct()
    score: Score = NoScore()
    memory: Memory = NoMemory()
    residual: Residual
    depth: Depth
    feedforward: FeedForward
    head: Head
    encoder: Spec | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_input(cls, fields: Any) -> Any:
        """The fields with the default input; files of earlier versions have `fact` instead."""
        if not isinstance(fields, dict):
            return fields
        words = fields.get("fact")
        fields = {name: value for name, value in fields.items() if name != "fact"}
        plain = fields.get("input") in (None, Tokens(), Features())
        if words is not None:
            fields["input"] = Facts(words=words)
        elif plain and (fields.get("vocab") is None) != (fields.get("features") is None):  # the default follows from vocab and features
            fields["input"] = Tokens() if fields.get("features") is None else Features()
        return fields

    @property
    def fact(self) -> int | None:
        """Words per fact, if a position is a sentence; else None."""
        return self.input.words if isinstance(self.input, Facts) else None

    @property
    def input_sizes(self) -> InputSizes:
        """The sizes for building the input."""
        scale = self.dim**0.5 if self.embedding_scale == "input" else 1.0
        tables = () if self.vocab is None else self.head.tables(self.vocab, self.dim)
        return InputSizes(self.dim, self.vocab, self.features, scale, self.spread, tables)

    @property
    def sizes(self) -> Sizes:
        """The sizes for building parts."""
        head_dim = self.head_dim or self.dim // self.heads
        return Sizes(
            dim=self.dim, heads=self.heads, head_dim=head_dim, value_dim=self.value_dim or head_dim,
            length=self.length, depth_steps=self.depth.steps, dropout=self.dropout, attention_dropout=self.attention_dropout,
            spread=self.spread, gain=self.residual.gain(self.depth.steps), initialisation=self.initialisation,
            causal=self.looks_back, source=None if self.encoder is None else self.encoder.width,
            final_widths=() if self.encoder is None else self.encoder.final_widths,
        )  # fmt: skip

    @property
    def layers(self) -> tuple[tuple[Attention, Pattern], ...]:
        """The attention and the pattern of every depth step, unwrapped."""
        return tuple((self.attention.at(step), self.pattern.at(step)) for step in range(self.depth.steps))

    @property
    def looks_back(self) -> bool:
        """Whether the pattern of every layer is causal."""
        return self.pattern.is_causal or all(self.pattern.at(step).is_causal for step in range(self.depth.steps))

    @property
    def max_length(self) -> int | None:
        """The largest length of a row that positions, patterns and projections allow.

        None if unlimited.
        """
        ends = [self.position.table_length(self.length) if self.position.bounded else None]
        ends += [None if pattern.max_length is None else pattern.max_length - self.extra for _, pattern in self.layers]
        ends += [attention.max_length(self.length) for attention, _ in self.layers]
        return min((end for end in ends if end is not None), default=None)

    @property
    def final_widths(self) -> tuple[tuple[int, ...], ...]:
        """The widths of the final states of each recurrent layer, for a decoder."""
        sizes = self.sizes
        found = (self.attention.at(layer).final_widths(sizes) for layer in range(self.depth.steps))
        return tuple(widths for widths in found if widths)

    @property
    def attention_steps(self) -> int:
        """The number of depth steps with attention; recurrent layers do not count."""
        return sum(not self.attention.at(step).carries for step in range(self.depth.steps))

    @property
    def width(self) -> int:
        """The width of the stack's output, the input of the head or of a decoder."""
        return self.residual.width(self.dim)

    @property
    def head_sizes(self) -> Sizes:
        """The sizes for building the head, with the width of the stack's output."""
        return replace(self.sizes, dim=self.width)

    @property
    def spread(self) -> float:
        """Initial standard deviation of an embedded token, after the scale."""
        if self.initialisation == "fan-in":
            return float(0.125 * self.dim**-0.5)
        return {"input": 1.0, "output": float(self.dim**-0.5), "none": 0.02}[self.embedding_scale]

    @property
    def draws(self) -> bool:
        """Whether a part draws random numbers anew in each training step."""
        return self.attention.draws or (self.encoder is not None and self.encoder.draws)

    @property
    def ponders(self) -> int | None:
        """The largest number of ACT steps of a token in this stack; None without ACT."""
        each = (self.depth.ponders, *(kind.ponders for kind in self.attention.kinds))
        return max((steps for steps in each if steps is not None), default=None)

    @property
    def state_shape(self) -> str:
        """The fields that a state depends on, as JSON: a model can continue a state of any model with the same value."""
        parts = self.model_dump(mode="json", include=set(SHAPING))
        encoder = None if self.encoder is None else json.loads(self.encoder.state_shape)
        return json.dumps({**parts, "head_dim": self.sizes.head_dim, "value_dim": self.sizes.value_dim, "encoder": encoder})

    def differs(self, shape: str) -> str | None:
        """The first field in which a state's shape differs from this spec's, with its value, as text; None if they are equal.

        A field that was added to a part after the shape was written has its default there.
        """
        given = json.loads(shape)
        reader = given.pop("encoder")
        if (reader is None) != (self.encoder is None):
            return "no encoder" if reader is None else "an encoder"
        try:
            other = self.replace(**given)
        except FormersError:
            return "parts unknown to this version"
        mine = self.replace(head_dim=self.sizes.head_dim, value_dim=self.sizes.value_dim)
        for name in ("depth", "heads", "head_dim", "value_dim", *SHAPING):
            if getattr(other, name) != getattr(mine, name):
                return f"{name}={getattr(other, name)!r}"
        inner = None if self.encoder is None else self.encoder.differs(json.dumps(reader))
        return None if inner is None else f"an encoder of {inner}"

    def deployed(self) -> Spec:
        """The spec without what only training needs."""
        head = self.head.deployed()
        return self if head == self.head else self.replace(head=head)

    @property
    def is_causal(self) -> bool:
        """Whether no output depends on later tokens, so that the model can continue a row."""
        return self.looks_back and self.head.per_position
