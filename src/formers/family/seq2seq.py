"""The recurrent encoder-decoder, without attention (Sutskever et al., 2014) and with it.

Additive attention is that of Bahdanau et al. (2015), multiplicative that of Luong et al. (2015), who call it general; their dot is the same
without a matrix. Equations E144-E149; docs/seq2seq.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.depth import Stacked
from formers.family.sizes import MemberSizes
from formers.feedforward import NoFeedForward
from formers.heads import LanguageModel, NoHead
from formers.model import Spec
from formers.patterns import Causal, Full
from formers.position import NoPosition
from formers.recurrent import Aligned, Recurrent
from formers.recurrent.cells import Cell
from formers.residual import Bare

# There is no preset: RNNsearch has embeddings of 620, 1,000 units and a maxout before its softmax; here all widths are equal.
TRAINING = {"": {"batch": 64, "learning_rate": 3e-3, "weight_decay": 0.0}}


def seq2seq(
    *,
    vocab: PositiveInt,
    source_vocab: PositiveInt | None = None,
    sizes: MemberSizes = MemberSizes(length=128, dropout=0.1),
    layers: PositiveInt = 1,
    cell: Cell = "lstm",
    alignment: Literal["none", "additive", "multiplicative", "dot", "general"] = "additive",
    feeding: bool = True,
    bidirectional: bool = True,
    label_smoothing: float = 0.0,
    tied: bool = True,
) -> Spec:
    """A recurrent encoder and a recurrent decoder with attention by `alignment`; "none" passes only the encoder's last state."""
    common: dict[str, Any] = dict(
        heads=1, **sizes.fields, position=NoPosition(), residual=Bare(), feedforward=NoFeedForward(),
    )  # fmt: skip
    encoder = Spec(
        name="seq2seq's encoder", vocab=source_vocab, attention=Recurrent(cell=cell, direction="both" if bidirectional else "forward"),
        pattern=Full() if bidirectional else Causal(), depth=Stacked(layers=layers), head=NoHead(), **common,
    )  # fmt: skip
    # All layers of the decoder are in one block: with input feeding, a token's first layer depends on the previous token's last one.
    decoder = Aligned(
        cell=cell, layers=layers, alignment="general" if alignment == "multiplicative" else alignment, feeding=feeding,
    )  # fmt: skip
    return Spec(
        name="seq2seq", vocab=vocab, attention=decoder, pattern=Causal(), depth=Stacked(layers=1),
        head=LanguageModel(tied=tied, label_smoothing=label_smoothing), encoder=encoder, **common,
    )  # fmt: skip
