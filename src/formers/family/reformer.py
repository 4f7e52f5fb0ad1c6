"""The Reformer (Kitaev et al., 2020): LSH attention, reversible layers and chunking, for long rows in little memory.

The default follows the paper: keys are normalised queries, a pair in several rounds counts once, and a query sees its own bucket only.
Scores of these unit keys are not scaled by default, as in the authors' code and transformers (docs/reformer-claims.md shows why).
With whole buckets (reach "bucket", the default) no later token changes an earlier output; reach "chunk" is the paper's. The option
`convention` sets the choices of other implementations: `CONVENTIONS`.

Equations E90-E98; docs/reformer.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from formers.attention import LSH, Attention, ByLayer, DotProduct, SharedQK
from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import position as positions
from formers.family.parts import residual
from formers.family.sizes import TransformerSizes
from formers.feedforward import Chunked
from formers.heads import Classify, LanguageModel, MaskedLM, NoHead
from formers.model import Spec
from formers.patterns import Alternate, Blocks, Causal, Full, Local, Pattern
from formers.position import Axial, Position
from formers.residual import Residual, Reversible

_TRAX_MODEL: dict[str, Any] = {
    "reach": "chunk", "across_buckets": True, "duplicates": True, "itself": "alone", "wrap": "rounds", "scaled": False,
    "key_epsilon": 1e-6, "ends": "concat", "tied": False, "embedding_scale": "none", "norm_epsilon": 1e-6,
}  # fmt: skip
CONVENTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "trax": _TRAX_MODEL,
    "transformers": {**_TRAX_MODEL, "norm_epsilon": 1e-12},
    "lucidrains": {
        "reach": "chunk", "across_buckets": True, "duplicates": True, "itself": "alone", "wrap": "rounds", "scaled": True,
        "key_epsilon": 0.0, "ends": "mean", "tied": False, "embedding_scale": "none", "norm_epsilon": 1e-5,
    },
}  # fmt: skip
"""The values of `convention`: the paper (the defaults), the authors' code (trax), the Reformer of transformers, and
reformer-pytorch (lucidrains). docs/reformer.md compares them."""

# The paper's enwik8-64K (section 5): 12 layers, 1.19 bits per byte after 20,000 steps. It names neither chunk nor rounds for it:
# the chunk is ours, and 8 rounds came near full attention (figure 4). The slices of feed-forward and loss change no number.
ENWIK8: dict[str, Any] = {
    "dim": 1024, "heads": 8, "layers": 12, "hidden": 4096, "length": 65_536, "rounds": 8, "chunk": 64, "reach": "chunk", "dropout": 0.1,
    "activation": "relu", "ff_chunk": 2048, "loss_chunk": 8192,
}  # fmt: skip
# Its ablations: three layers of the same.
ABLATION: dict[str, Any] = {**ENWIK8, "layers": 3, "dropout": 0.0}
# The authors' code for enwik8 (trax, reformer_enwik8.gin, "if more memory is available"): three local layers to one of LSH, and its own
# conventions. The public weights of transformers have these sizes, and 4 rounds.
TRAX: dict[str, Any] = {
    **ENWIK8, "head_dim": 128, "attention": ("local", "local", "lsh", "local"), "local_chunk": 128, "chunk": 256, "buckets": 512,
    "rounds": 2, "convention": "trax", "shape": (128, 512), "dims": (256, 768), "dropout": 0.2, "attention_dropout": 0.2,
}  # fmt: skip
# Its images of 64 x 64 pixels as rows of 12,288 bytes (trax, reformer_imagenet64.gin). There positions have three axes, here a row and a
# place in it.
IMAGENET64: dict[str, Any] = {
    **ENWIK8, "head_dim": 64, "layers": 6, "length": 12_288, "shape": (64, 192), "dims": (384, 640), "rounds": 2, "chunk": 128,
    "buckets": 192, "dropout": 0.0, "attention_dropout": 0.2, "activation": "gelu-tanh",
}  # fmt: skip
# Its translation (section 5, and trax, reformer_wmt_ende.gin): the base model of 2017 with reversible layers. Sentences are short: no LSH.
WMT: dict[str, Any] = {
    "dim": 512, "heads": 8, "layers": 6, "decoder_layers": 6, "hidden": 2048, "length": 512, "attention": ("separate",), "dropout": 0.1,
    "position": "sinusoidal", "activation": "relu",
}  # fmt: skip

# Adafactor in the paper, Adam in trax, whose peak is d^-0.5 w^-0.5 (twice that for translation).
_TRAX: dict[str, Any] = {
    "batch": 8, "schedule": "inverse-sqrt", "warmup": 2000, "learning_rate": (1024 * 2000) ** -0.5, "weight_decay": 0.0,
}  # fmt: skip
TRAINING: dict[str, dict[str, Any]] = {
    "": {"row_tokens": 4096, "learning_rate": 2e-3, "warmup": 30},
    **dict.fromkeys(("base", "ablation", "trax"), _TRAX),
    "imagenet64": {**_TRAX, "warmup": 8000, "learning_rate": (1024 * 8000) ** -0.5},
    "wmt": {**_TRAX, "batch": 256, "warmup": 8000, "learning_rate": 2 * (512 * 8000) ** -0.5},
}

Word = Literal["lsh", "local", "full", "separate"]
"""The attention of a layer: LSH; local, over its chunk of positions and the one before; over all pairs with queries as keys; or over
all pairs with separate keys."""


def listed(words: Any) -> Any:
    """Splits a string "local,lsh", as the command line gives it; any other value is returned unchanged."""
    return tuple(word.strip() for word in words.split(",")) if isinstance(words, str) else words


def reformer(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    causal: bool | None = None,
    decoder_layers: NonNegativeInt = 0,
    sizes: TransformerSizes = TransformerSizes(length=512, norm="reversible"),
    attention: Annotated[tuple[Word, ...], BeforeValidator(listed)] = ("lsh",),
    rounds: PositiveInt = 2,
    evaluation_rounds: PositiveInt | None = None,
    chunk: PositiveInt | None = None,
    buckets: PositiveInt | tuple[PositiveInt, ...] | None = None,
    reach: Literal["chunk", "bucket"] = "bucket",
    duplicates: bool = False,
    across_buckets: bool = False,
    itself: Literal["alone", "always"] = "alone",
    wrap: Literal["round", "rounds"] = "round",
    scaled: bool = False,
    key_epsilon: NonNegativeFloat = 0.0,
    hash_seed: int = 0,
    local_chunk: PositiveInt | None = None,
    ff_chunk: PositiveInt | None = 2048,
    loss_chunk: PositiveInt | None = None,
    ends: Literal["mean", "concat", "sum"] | None = None,
    position: str = "axial",
    shape: tuple[PositiveInt, PositiveInt] | None = None,
    dims: tuple[PositiveInt, PositiveInt] | None = None,
    tied: bool = True,
) -> Spec:
    """LSH attention in reversible layers: a language model, an encoder (causal=False, or with `classes`), or with `decoder_layers` both.

    `attention` lists the kinds that layers cycle through, as in local,lsh. The default chunk is 64, or the length if that is less, and so
    is the local chunk. Positions are axial; the default `shape` follows from the length. `hash_seed` draws the rotations.
    `ff_chunk` and `loss_chunk` are the numbers of tokens whose hidden activations and logits are computed at once.
    """
    causal = not (classes or decoder_layers) if causal is None else causal
    if decoder_layers and (causal or classes is not None):
        given = "causal=True" if causal else f"classes={classes}"
        raise FormersError(f"{given} and decoder_layers={decoder_layers} are two different models: give one of them.")
    if not attention:
        raise FormersError("attention=[] gives no layer an attention: name at least one, as in attention=lsh or attention=local,lsh.")
    chunk = chunk or min(64, sizes.length)
    lsh = LSH(
        rounds=rounds, chunk=chunk, buckets=buckets, reach=reach, duplicates=duplicates, across_buckets=across_buckets, itself=itself,
        wrap=wrap, scaled=scaled, evaluation_rounds=evaluation_rounds, seed=hash_seed, key_epsilon=key_epsilon,
    )  # fmt: skip
    plain = DotProduct(bias=False)
    kinds: dict[str, Attention] = {"lsh": lsh, "local": plain, "full": SharedQK(scaled=scaled, key_epsilon=key_epsilon), "separate": plain}
    everything, near = visibility(causal, local_chunk or chunk)
    seen = [near if word == "local" else everything for word in attention]
    common: dict[str, Any] = dict(
        **sizes.fields, position=position_part(position, shape, dims), residual=residual_part(sizes.norm, ends),
        feedforward=sizes.feedforward
        if ff_chunk is None
        else Chunked(hidden=sizes.hidden_dim, activation=sizes.activation, chunk=ff_chunk),
    )  # fmt: skip
    reads: dict[str, Any] = dict(
        attention=kinds[attention[0]] if len(set(attention)) == 1 else ByLayer(*(kinds[word] for word in attention)),
        pattern=seen[0] if len(set(seen)) == 1 else Alternate(*seen), depth=Stacked(layers=sizes.layers),
    )  # fmt: skip
    if not decoder_layers:
        head = LanguageModel if causal else MaskedLM
        made = head(tied=tied, chunk=loss_chunk) if classes is None else Classify(classes=classes, pool=pool)
        return Spec(name="reformer", vocab=vocab, features=features, head=made, **reads, **common)
    # LSH has no cross-attention, and targets are short compared with sources.
    writes: dict[str, Any] = dict(attention=plain, pattern=Causal(), depth=Stacked(layers=decoder_layers))
    encoder = Spec(name="reformer's encoder", features=features, head=NoHead(), **reads, **common)
    return Spec(name="reformer", vocab=vocab, encoder=encoder, head=LanguageModel(tied=tied, chunk=loss_chunk), **writes, **common)


def visibility(causal: bool, chunk: int) -> tuple[Pattern, Pattern]:
    """The patterns of a full layer and of a local one (its chunk of positions and the one before, or if not causal a window)."""
    if causal:
        return Causal(), Blocks(query=chunk, memory=chunk)
    return Full(), Local(window=chunk, causal=False)


def position_part(word: str, shape: tuple[int, int] | None, dims: tuple[int, int] | None) -> Position:
    """The position part of a word; "axial" with a shape."""
    if word == "axial":
        return Axial(shape=shape, dims=dims)
    for name, value in (("shape", shape), ("dims", dims)):
        if value is not None:
            raise FormersError(f"{name}={list(value)} is for axial positions, not position={word}: leave it out.")
    return positions(word)


def residual_part(word: str, ends: Literal["mean", "concat", "sum"] | None) -> Residual:
    """The residual part of a word; "reversible" with how its two streams end."""
    if ends is None:
        return residual(word)
    if word != "reversible":
        raise FormersError(f"ends={ends} is for reversible layers, not norm={word}: leave it out.")
    return Reversible(ends=ends)
