"""Recurrent networks with adaptive computation time (Graves, 2016). Equations E40-E47; docs/act.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.core import FormersError
from formers.depth import Stacked
from formers.depth.halting import Bias, Epsilon, Price
from formers.family.parts import residual
from formers.family.sizes import MemberSizes
from formers.feedforward import NoFeedForward
from formers.heads import LanguageModel, Tag
from formers.memory import Carry, NoMemory
from formers.model import Spec
from formers.patterns import Causal
from formers.position import NoPosition
from formers.recurrent import Pondering
from formers.recurrent.cells import Cell

# The paper's four tasks (section 3), whose data say how many features and classes there are. It tries many time penalties between 1e-4
# and 1e-1, summed over a row; this is one of them.
PARITY: dict[str, Any] = {"cell": "tanh", "dim": 128, "steps": 100, "length": 1, "ponder": 1e-3}
LOGIC: dict[str, Any] = {**PARITY, "cell": "lstm", "length": 10}
ADDITION: dict[str, Any] = {**LOGIC, "dim": 512, "steps": 20, "length": 5}
SORT: dict[str, Any] = {**LOGIC, "dim": 512, "length": 30}
# Adam with a constant rate; the paper uses sixteen asynchronous threads, each with batches of these sizes.
_PAPER: dict[str, Any] = {"learning_rate": 1e-4, "schedule": "constant", "warmup": 0, "weight_decay": 0.0}
TRAINING: dict[str, dict[str, Any]] = {
    "": {"learning_rate": 1e-3, "weight_decay": 0.0, "batch": 64}, "parity": {**_PAPER, "batch": 128}, "logic": {**_PAPER, "batch": 16},
    "addition": {**_PAPER, "batch": 32}, "sort": {**_PAPER, "batch": 16},
}  # fmt: skip


def act_rnn(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    places: PositiveInt = 1,
    cell: Cell = "tanh",
    sizes: MemberSizes = MemberSizes(length=32),
    layers: PositiveInt = 1,
    steps: PositiveInt = 20,
    act: Literal["graves", "t2t", "none"] = "graves",
    halt_epsilon: Epsilon = 0.01,
    ponder: Price = 0.01,
    halt_bias: Bias = 1.0,
    norm: str = "bare",
    tied: bool = True,
) -> Spec:
    """A recurrent cell that takes up to `steps` steps for each input: a tagger of vectors, or with `vocab` a language model."""
    if classes is None and vocab is None and features is None:
        raise FormersError("act-rnn has no input: give features and classes for vectors, or vocab for tokens.")
    if classes is None and vocab is None:
        raise FormersError(f"act-rnn with features={features} predicts a class for each vector: give classes, or vocab for tokens.")
    if classes is None and places > 1:
        raise FormersError(f"places={places} is the number of targets per position, which needs classes: give classes.")
    writes = classes is None
    return Spec(
        name="act-rnn", vocab=vocab, features=features, heads=1, **sizes.fields, position=NoPosition(),
        pattern=Causal(), attention=Pondering(cell=cell, steps=steps, epsilon=halt_epsilon, ponder=ponder, bias=halt_bias, act=act),
        memory=Carry() if writes else NoMemory(), residual=residual(norm), depth=Stacked(layers=layers), feedforward=NoFeedForward(),
        head=LanguageModel(tied=tied) if classes is None else Tag(classes=classes, places=places),
    )  # fmt: skip
