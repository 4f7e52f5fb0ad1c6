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
    depth_steps: int
    """The number of blocks that x passes through; a training step is something else."""
    dropout: float
    attention_dropout: float
    spread: float = 1.0
    """Initial standard deviation of an embedded token; what is added to it should have the same scale."""
    gain: float = 1.0
    """Factor on the initial weights of a sublayer's output projection."""
    initialisation: Law = "xavier"
    """The distribution of initial weights."""
    causal: bool = False
    """Whether a token may depend only on earlier tokens; this also binds sublayers other than attention that mix positions."""
    source: int | None = None
    """The width of the encoder's output; None without an encoder."""
    final_widths: tuple[tuple[int, ...], ...] = ()
    """The widths of the encoder's final recurrent states, by layer."""
