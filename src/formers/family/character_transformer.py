"""The deep character Transformer (Al-Rfou et al., 2018): positions in every layer, and auxiliary losses that let deep stacks learn.

Equations E30-E36; docs/character-transformer.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import position as positions
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.heads import Auxiliary, LanguageModel
from formers.model import Spec
from formers.patterns import Causal

# The paper's T64: 235 million parameters in training, 219 million at inference. Its section 3 has dropout of 0.55 in the attention and
# ReLU layers; we assume no dropout on sublayer outputs, and an untied head.
BASE: dict[str, Any] = {
    "dim": 512, "heads": 2, "layers": 64, "hidden": 2048, "length": 512, "dropout": 0.0, "attention_dropout": 0.55,
    "activation_dropout": 0.55, "norm": "post", "tied": False,
}  # fmt: skip
# Its T12: 44 million in training.
T12: dict[str, Any] = {**BASE, "layers": 12}

# Momentum of 0.99 at a fixed rate, in batches of 16, for 4 million steps.
_PAPER: dict[str, Any] = {
    "optimizer": "momentum", "momentum": 0.99, "learning_rate": 0.003, "schedule": "constant", "warmup": 0, "weight_decay": 0.0,
    "batch": 16,
}  # fmt: skip
TRAINING: dict[str, dict[str, Any]] = {"": {"learning_rate": 2e-3}, "base": _PAPER, "t12": _PAPER}
# Each character is predicted from the 512 before it, in a separate window: the protocol of its tables, and slow.
EVALUATION: dict[str, dict[str, Any]] = {"base": {"kind": "sliding"}, "t12": {"kind": "sliding"}}


def character_transformer(
    *,
    vocab: PositiveInt,
    sizes: TransformerSizes = TransformerSizes(dim=64, length=128, heads=2, activation="relu", layers=12),
    activation_dropout: float = 0.0,
    position: str = "per-layer",
    auxiliary: bool = True,
    intermediate: Literal["cut-off", "decay", "constant", "none"] | None = None,
    targets: PositiveInt | None = None,
    tied: bool = True,
) -> Spec:
    """A deep decoder with positions added in every layer, and auxiliary next-token losses at intermediate layers early in training.

    Without `auxiliary` only the last layer has a loss. With it, losses of intermediate layers end by the "cut-off"
    schedule by default, and each position has 2 `targets` by default.
    """
    if not auxiliary and (intermediate, targets) != (None, None):
        name, value = ("intermediate", intermediate) if intermediate is not None else ("targets", targets)
        raise FormersError(f"{name}={value} is for auxiliary losses, and auxiliary=false has none: leave one of them out.")
    plain = LanguageModel(tied=tied)
    return Spec(
        name="character-transformer", vocab=vocab, **sizes.fields, position=positions(position), pattern=Causal(),
        residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers),
        feedforward=sizes.feedforward.replace(dropout=activation_dropout),
        head=Auxiliary(tied=tied, intermediate=intermediate or "cut-off", targets=targets or 2) if auxiliary else plain,
    )  # fmt: skip
