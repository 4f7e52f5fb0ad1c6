"""Linformer (Wang et al., 2020): an encoder whose keys and values are projected along the length, so that attention costs n x rank.

Equations E120-E122; docs/linformer.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from formers.attention import LowRank
from formers.depth import Stacked
from formers.family.parts import position as positions
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.heads import Classify, MaskedLM
from formers.model import Spec
from formers.patterns import Full

# RoBERTa-base with the projections of the paper's best row at length 512 (table 2): rank 256, one matrix for all ("shared kv, layer").
BASE = {
    "dim": 768, "heads": 12, "layers": 12, "hidden": 3072, "length": 512, "rank": 256, "sharing": "layerwise", "projection": "linear",
    "dropout": 0.1, "attention_dropout": 0.1, "norm": "post", "position": "learned", "activation": "gelu", "embedding_scale": "none",
}  # fmt: skip

NEVER = {
    "causal": (
        "linformer cannot be causal: each of its projected keys is made of the whole row, so the past would see the future; "
        "use the decoder or another causal member, and leave causal out."
    )
}


def linformer(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    sizes: TransformerSizes = TransformerSizes(dropout=0.1),
    rank: PositiveInt | None = None,
    sharing: Literal["none", "headwise", "key-value", "layerwise"] = "layerwise",
    projection: Literal["linear", "mean", "conv"] = "linear",
    position: str = "sinusoidal",
    tied: bool = True,
) -> Spec:
    """An encoder with linear cost: `rank` projected keys; a masked language model, or with `classes` a classifier.

    The default rank is 64, or the length if that is less: a rank proportional to the length would make the cost quadratic again.
    """
    return Spec(
        name="linformer", vocab=vocab, features=features, **sizes.fields,
        attention=LowRank(rank=rank or min(64, sizes.length), sharing=sharing, projection=projection),
        position=positions(position), pattern=Full(), residual=residual(sizes.norm), depth=Stacked(layers=sizes.layers),
        feedforward=sizes.feedforward,
        head=MaskedLM(tied=tied) if classes is None else Classify(classes=classes, pool=pool),
    )  # fmt: skip
