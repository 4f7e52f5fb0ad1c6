"""The Transformer of Vaswani et al. (2017): encoder-decoder, encoder, decoder.

Equations E1-E18; docs/transformer.md.
"""

from __future__ import annotations

from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from formers.depth import Stacked
from formers.family.parts import position as positions
from formers.family.parts import residual, tokens_or, words
from formers.family.sizes import TransformerSizes
from formers.heads import Classify, LanguageModel, MaskedLM, NoHead
from formers.model import Spec
from formers.patterns import Causal, Full

# The paper's base model: 6 layers of width 512, post-norm, sinusoidal positions, ReLU (table 3).
BASE = {
    "dim": 512, "heads": 8, "layers": 6, "hidden": 2048, "length": 512, "dropout": 0.1,
    "norm": "post", "position": "sinusoidal", "activation": "relu",
}  # fmt: skip


# The paper's schedule, whose peak is d^-0.5 w^-0.5 after w = 4000 steps, belongs to its large data; the small model is trained in minutes.
TRAINING = {
    "": {"batch": 64, "learning_rate": 2e-3, "warmup": 200, "weight_decay": 0.0},
    "base": {"schedule": "inverse-sqrt", "weight_decay": 0.0, "warmup": 4000, "learning_rate": (512 * 4000) ** -0.5},
}


def transformer(
    *,
    vocab: PositiveInt,
    source_vocab: PositiveInt | None = None,
    sizes: TransformerSizes = TransformerSizes(length=128, dropout=0.1, activation="relu", layers=3, norm="post"),
    position: str = "sinusoidal",
    offset: NonNegativeInt = 0,
    label_smoothing: float = 0.1,
    tied: bool = True,
) -> Spec:
    """The encoder-decoder, from a source to a target. Without source_vocab both sides share one vocabulary and embedding."""
    common: dict[str, Any] = dict(
        **sizes.fields, position=positions(position, offset), residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers),
        feedforward=sizes.feedforward,
    )  # fmt: skip
    encoder = Spec(name="transformer's encoder", vocab=source_vocab, pattern=Full(), head=NoHead(), **common)
    head = LanguageModel(tied=tied, label_smoothing=label_smoothing)
    return Spec(name="transformer", vocab=vocab, pattern=Causal(), head=head, encoder=encoder, **common)


def encoder(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    fact: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    sizes: TransformerSizes = TransformerSizes(dropout=0.1),
    position: str = "sinusoidal",
    offset: NonNegativeInt = 0,
    tied: bool = True,
) -> Spec:
    """The encoder alone: a masked language model, or with `classes` a classifier of whole sequences, with `fact` of stories."""
    return Spec(
        name="encoder", vocab=vocab, features=features, input=tokens_or(features, fact), **sizes.fields,
        position=positions(position, offset), pattern=Full(), residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers),
        feedforward=sizes.feedforward,
        head=MaskedLM(tied=tied) if classes is None else Classify(classes=classes, pool=pool),
    )  # fmt: skip


def decoder(
    *,
    vocab: PositiveInt,
    sizes: TransformerSizes = TransformerSizes(),
    position: str = "sinusoidal",
    offset: NonNegativeInt = 0,
    label_smoothing: float = 0.0,
    tied: bool = True,
    cutoffs: tuple[PositiveInt, ...] | None = None,
    division: PositiveInt = 1,
    loss_chunk: PositiveInt | None = None,
) -> Spec:
    """The decoder alone: a language model that predicts each token from those before it."""
    return Spec(
        name="decoder", vocab=vocab, **sizes.fields,
        position=positions(position, offset), pattern=Causal(), residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers),
        feedforward=sizes.feedforward,
        head=words(vocab, cutoffs, division, tied, label_smoothing, loss_chunk),
    )  # fmt: skip
