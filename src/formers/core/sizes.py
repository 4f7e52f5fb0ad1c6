"""The sizes a part needs to build its module."""

from __future__ import annotations

from dataclasses import dataclass

from formers.core.initial import Law


@dataclass(frozen=True)
class Sizes:
    """Model width, heads, width of a head's keys and values, training length, depth steps and dropout rates."""

    dim: int
    heads: int
    head_dim: int
    value_dim: int
    length: int
    steps: int
    dropout: float
    attention_dropout: float
    spread: float = 1.0
    """Standard deviation of an embedded token at the start: what is added to it should be of its size."""
    gain: float = 1.0
    """Factor on the initial weights of a sublayer's output projection."""
    initialisation: Law = "xavier"
    """The law by which weights start."""
    causal: bool = False
    """Whether a token may depend on those before it alone: what mixes positions beside attention must keep to that, too."""
    source: int | None = None
    """The width of an encoder's output, where there is one to read."""
    finals: tuple[tuple[int, ...], ...] = ()
    """The widths of its final states, by recurrent layer of the encoder."""
