"""Transformer-XL (Dai et al., 2019): segment recurrence and relative positions. Equations E50-E53; docs/transformer-xl.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from formers.attention import DotProduct
from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import residual, words
from formers.family.sizes import TransformerSizes
from formers.memory import Recurrence
from formers.model import Spec
from formers.patterns import Causal, Local
from formers.position import NoPosition
from formers.score import Relative

# The authors' enwik8, 12 layers: 41 million parameters.
ENWIK8: dict[str, Any] = {
    "dim": 512, "heads": 8, "head_dim": 64, "layers": 12, "hidden": 2048, "length": 512, "memory": 512, "dropout": 0.1, "norm": "post",
    "activation": "relu",
}  # fmt: skip
# Their WikiText-103, 16 layers: 151 million parameters with its vocabulary of 267,735 words.
WIKITEXT103: dict[str, Any] = {
    "dim": 410, "heads": 10, "head_dim": 41, "layers": 16, "hidden": 2100, "length": 150, "memory": 150, "dropout": 0.1, "norm": "post",
    "activation": "relu",
}  # fmt: skip
# Their large models, 277 and 257 million parameters. Dropout, and the segment that they are evaluated in, are from memory of the scripts.
LARGE: dict[str, Any] = {
    **ENWIK8, "dim": 1024, "head_dim": 128, "layers": 24, "hidden": 3072, "length": 768, "memory": 768, "dropout": 0.15,
    "attention_dropout": 0.15,
}  # fmt: skip
WIKITEXT103_LARGE: dict[str, Any] = {
    **WIKITEXT103, "dim": 1024, "heads": 16, "head_dim": 64, "layers": 18, "hidden": 4096, "length": 384, "memory": 384, "dropout": 0.2,
    "attention_dropout": 0.2, "division": 4,
}  # fmt: skip
_PAPER: dict[str, Any] = {"learning_rate": 2.5e-4, "schedule": "cosine", "warmup": 0, "weight_decay": 0.0, "clip": 0.25}
TRAINING: dict[str, dict[str, Any]] = {
    "": {"learning_rate": 2e-3}, "base": {**_PAPER, "batch": 22}, "wikitext103": {**_PAPER, "batch": 60},
    "large": {**_PAPER, "batch": 64}, "wikitext103-large": {**_PAPER, "batch": 128},
}  # fmt: skip

# The authors' evaluation: a memory much longer than in training, which the clamp makes possible.
EVALUATION: dict[str, dict[str, Any]] = {
    "base": {"kind": "memory", "segment": 80, "attention_length": 2100, "clamp": 820, "same_length": True},
    "wikitext103": {"kind": "memory", "segment": 64, "attention_length": 640, "clamp": 400, "same_length": True},
    "large": {"kind": "memory", "segment": 128, "attention_length": 3800, "clamp": 1000, "same_length": True},
    "wikitext103-large": {"kind": "memory", "segment": 128, "attention_length": 1600, "clamp": 1000, "same_length": True},
}


def transformer_xl(
    *,
    vocab: PositiveInt,
    sizes: TransformerSizes = TransformerSizes(length=128),
    memory: NonNegativeInt = 128,
    memory_start: Literal["empty", "zeros"] = "empty",
    clamp: PositiveInt | None = None,
    same_length: bool = False,
    untied: bool = False,
    tied: bool = True,
    cutoffs: tuple[PositiveInt, ...] | None = None,
    division: PositiveInt = 1,
) -> Spec:
    """Every token attends to its segment up to itself and the `memory` tokens before; with same_length to the last `memory` tokens."""
    if same_length and not memory:
        raise FormersError("same_length=True with memory=0 leaves no tokens to attend to: give memory at least 1.")
    return Spec(
        name="transformer-xl", vocab=vocab, **sizes.fields, position=NoPosition(),
        pattern=Local(window=memory) if same_length else Causal(),
        attention=DotProduct(bias=False), score=Relative(clamp=clamp, untied=untied), memory=Recurrence(length=memory, start=memory_start),
        residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers), feedforward=sizes.feedforward,
        head=words(vocab, cutoffs, division, tied),
    )  # fmt: skip
