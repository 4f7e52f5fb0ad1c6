"""BigBird (Zaheer et al., 2020): attention over a window, global and random blocks, which is linear in the length.

Global are blocks of the row itself (the paper's ITC) or, with `extra`, learned vectors before it (ETC).
Equations E130-E134; docs/bigbird.md.
"""

from __future__ import annotations

from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import position as positions
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.heads import Classify, LanguageModel, MaskedLM, NoHead
from formers.model import Spec
from formers.patterns import BigBird, Causal, Globals, Pattern

# The paper's base models (appendix E): those of BERT, at 4,096 tokens. (Its code leaves attention dropout out where attention is sparse.)
COMMON = {
    "dim": 768, "heads": 12, "layers": 12, "hidden": 3072, "length": 4096, "dropout": 0.1, "attention_dropout": 0.1,
    "norm": "post", "position": "learned", "activation": "gelu", "embedding_scale": "none",
}  # fmt: skip
BASE = {**COMMON, "block": 64, "window": 3, "global_blocks": 2, "random_blocks": 3}
# The paper's ETC has relative positions and a second loss (CPC), too; these are not here.
ETC = {**COMMON, "block": 84, "window": 3, "global_blocks": 0, "random_blocks": 0, "extra": 256}

_LARGE = {"batch": 256, "learning_rate": 1e-4, "warmup": 10000}
TRAINING = {"base": _LARGE, "etc": _LARGE}


def bigbird(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    decoder_layers: NonNegativeInt = 0,
    sizes: TransformerSizes = TransformerSizes(length=1024, dropout=0.1),
    block: PositiveInt = 32,
    window: PositiveInt = 3,
    global_blocks: NonNegativeInt | None = None,
    random_blocks: NonNegativeInt = 3,
    extra: NonNegativeInt = 0,
    pattern_seed: int = 0,
    position: str = "sinusoidal",
    tied: bool = True,
) -> Spec:
    """An encoder of long rows over window, global and random blocks: masked language model, classifier, or encoder-decoder.

    With `classes` it classifies whole rows; `decoder_layers` adds a decoder with full attention. `extra` learned
    vectors before every row are its global tokens; `global_blocks` is then 0 by default, else 2. `pattern_seed`
    draws the random blocks.
    """
    if decoder_layers and classes is not None:
        raise FormersError(f"classes={classes} and decoder_layers={decoder_layers} are two different models: give one of them.")
    blocks = (0 if extra else 2) if global_blocks is None else global_blocks
    pattern: Pattern = BigBird(block=block, window=window, global_blocks=blocks, random_blocks=random_blocks, seed=pattern_seed)
    common: dict[str, Any] = dict(
        **sizes.fields, position=positions(position), residual=residual(sizes.norm), feedforward=sizes.feedforward,
    )  # fmt: skip
    seen = Globals(tokens=extra) | pattern if extra else pattern
    reads: dict[str, Any] = dict(pattern=seen, extra=extra, depth=Stacked(layers=sizes.layers))
    if not decoder_layers:
        head = MaskedLM(tied=tied) if classes is None else Classify(classes=classes, pool=pool)
        return Spec(name="bigbird", vocab=vocab, features=features, head=head, **reads, **common)
    encoder = Spec(name="bigbird's encoder", features=features, head=NoHead(), **reads, **common)
    writes: dict[str, Any] = dict(pattern=Causal(), depth=Stacked(layers=decoder_layers), head=LanguageModel(tied=tied))
    return Spec(name="bigbird", vocab=vocab, encoder=encoder, **writes, **common)
