"""Stacked word windows (Collobert and Weston, 2008; the convolutional baseline of CS224N). Equation E143; docs/recurrent.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import residual
from formers.family.sizes import MemberSizes
from formers.feedforward import NoFeedForward
from formers.heads import Classify, Head, LanguageModel, MaskedLM
from formers.model import Spec
from formers.patterns import Causal, Full
from formers.position import NoPosition
from formers.recurrent import Window

TRAINING: dict[str, dict[str, Any]] = {"": {"learning_rate": 2e-3}}


def word_window(
    *,
    vocab: PositiveInt,
    window: PositiveInt = 2,
    sizes: MemberSizes = MemberSizes(),
    layers: PositiveInt = 4,
    norm: str = "bare",
    activation: Literal["relu", "gelu", "tanh"] = "relu",
    causal: bool = True,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    tied: bool = True,
) -> Spec:
    """A language model over the last layers * window tokens; with causal=False a masked one, with as many to either side.

    With `classes` a classifier of whole sequences, not causal.
    """
    ahead = not causal or classes is not None
    head: Head = LanguageModel(tied=tied)
    if ahead:
        head = MaskedLM(tied=tied) if classes is None else Classify(classes=classes, pool=pool)
    if classes is None and pool != "mean":
        raise FormersError(f"pool={pool} is for classifiers: give classes, or leave it out.")
    return Spec(
        name="word-window", vocab=vocab, heads=1, **sizes.fields, position=NoPosition(),
        pattern=Full() if ahead else Causal(), attention=Window(window=window, activation=activation), residual=residual(norm),
        depth=Stacked(layers=layers), feedforward=NoFeedForward(), head=head,
    )  # fmt: skip
