"""Recurrent language models (Mikolov et al., 2010; Zaremba et al., 2014). Equations E140-E142; docs/recurrent.md."""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from formers.depth import Stacked
from formers.family.parts import residual, words
from formers.family.sizes import MemberSizes
from formers.feedforward import NoFeedForward
from formers.memory import Carry
from formers.model import Spec
from formers.patterns import Causal
from formers.position import NoPosition
from formers.recurrent import Recurrent
from formers.recurrent.cells import Cell

# Zaremba et al. (2014), Penn Treebank, from memory: two layers of LSTM, dropout on all connections but the recurrent ones.
MEDIUM: dict[str, Any] = {"cell": "lstm", "dim": 650, "layers": 2, "length": 35, "dropout": 0.5, "tied": False}
LARGE: dict[str, Any] = {**MEDIUM, "dim": 1500, "dropout": 0.65}
# The paper uses SGD with a rate of 1 that decays once per epoch; this is AdamW with a rate that decays until the end.
TRAINING: dict[str, dict[str, Any]] = {
    "": {"learning_rate": 5e-3, "weight_decay": 0.0},
    "base": {"learning_rate": 2e-3, "weight_decay": 0.0, "batch": 20, "clip": 5.0},
    "large": {"learning_rate": 1e-3, "weight_decay": 0.0, "batch": 20, "clip": 10.0},
}


def rnn(
    *,
    vocab: PositiveInt,
    cell: Cell = "lstm",
    sizes: MemberSizes = MemberSizes(dim=256, length=128),
    layers: PositiveInt = 2,
    norm: str = "bare",
    tied: bool = True,
    cutoffs: tuple[PositiveInt, ...] | None = None,
    division: PositiveInt = 1,
) -> Spec:
    """A stack of `layers` recurrent cells, whose states are carried from segment to segment."""
    return Spec(
        name="rnn", vocab=vocab, heads=1, **sizes.fields, position=NoPosition(), pattern=Causal(),
        attention=Recurrent(cell=cell), memory=Carry(), residual=residual(norm), depth=Stacked(layers=layers),
        feedforward=NoFeedForward(), head=words(vocab, cutoffs, division, tied),
    )  # fmt: skip
