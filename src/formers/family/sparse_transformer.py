"""The Sparse Transformer of Child et al. (2019): factorised attention over long rows of bytes: text, images or audio.

Its parts are spread over the model in one of three ways:
interleaved      A(1) in one layer, A(2) in the next, by turns                  E85
merged           one head sees both, A(1) + A(2)                                E81, E83
heads            head m of h sees part floor(mp/h) of p                         E89

Equations E80-E89; docs/sparse-transformer.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import PositiveInt

from formers.core import FormersError
from formers.depth import Stacked
from formers.family.sizes import AttentionSizes
from formers.heads import LanguageModel
from formers.model import Spec
from formers.patterns import Alternate, Fixed, Pattern, PerHead, Strided
from formers.position import Grid
from formers.residual import PreNorm

# The paper's enwik8 (section 7.2): 95 million parameters.
BASE: dict[str, Any] = {
    "dim": 512, "heads": 8, "layers": 30, "hidden": 2048, "length": 12_288, "dropout": 0.4,
    "pattern": "fixed", "stride": 128, "summary": 32, "use": "merged",
}  # fmt: skip
# Its CIFAR-10 (section 7.1): 59 million parameters; queries, keys and the feed-forward network are of half size. Use is the code's.
CIFAR10: dict[str, Any] = {
    "dim": 256, "heads": 2, "head_dim": 64, "value_dim": 128, "layers": 128, "hidden": 512, "length": 3072, "dropout": 0.25,
    "height": 32, "width": 32, "channels": 3, "pattern": "strided", "stride": 128, "use": "interleaved",
}  # fmt: skip
# Its ImageNet of 64 x 64 pixels (section 7.3): 152 million parameters.
IMAGENET64: dict[str, Any] = {
    "dim": 512, "heads": 16, "layers": 48, "hidden": 2048, "length": 12_288, "dropout": 0.01,
    "height": 64, "width": 64, "channels": 3, "pattern": "strided", "stride": 128, "use": "interleaved",
}  # fmt: skip

# Section 7 for all of them; the rate is the one that it names for CIFAR-10.
_PAPER: dict[str, Any] = {"learning_rate": 3.5e-4, "warmup": 5000, "schedule": "cosine", "weight_decay": 0.01, "clip": 1.0}
TRAINING = {"": {"batch": 8, "learning_rate": 4e-3, "weight_decay": 0.01}, **dict.fromkeys(("base", "cifar10", "imagenet64"), _PAPER)}


def sparse_transformer(
    *,
    vocab: PositiveInt,
    sizes: AttentionSizes = AttentionSizes(embedding_scale="none", activation="gelu-sigmoid"),
    layers: PositiveInt = 4,
    length: PositiveInt | None = None,
    pattern: Literal["strided", "fixed"] | None = None,
    stride: PositiveInt | None = None,
    summary: PositiveInt | None = None,
    subblocks: PositiveInt | None = None,
    use: Literal["interleaved", "merged", "heads"] = "merged",
    height: PositiveInt | None = None,
    width: PositiveInt | None = None,
    channels: PositiveInt = 1,
) -> Spec:
    """Factorised attention; the default `pattern` is fixed for text and strided for images (if `width` is given).

    Unless given, the length is that of the image, or 1,024; the stride a power of two near its root, or the row of an image; and the
    summary an eighth of the stride.
    """
    length = length or (height * width * channels if height and width else 1024)
    stride = stride or (1 << length.bit_length() // 2 if width is None else width * channels)
    pattern = pattern or ("fixed" if width is None else "strided")
    factorised: Strided | Fixed = Strided(stride=stride)
    if pattern == "fixed":
        summary = summary or max(1, stride // 8)
        # Heads that attend to distinct sub-blocks were better (section 4.3). If each head has one part, half of them attend to summaries.
        looking = sizes.heads // 2 if use == "heads" else sizes.heads
        factorised = Fixed(stride=stride, summary=summary, subblocks=subblocks or max(1, min(looking, stride // summary)))
    elif summary or subblocks:
        name, value = ("summary", summary) if summary else ("subblocks", subblocks)
        raise FormersError(f"{name}={value} is for pattern=fixed, not pattern=strided: leave it out.")
    if width is None and (height is not None or channels > 1):
        raise FormersError(f"height={height} and channels={channels} are for an image, which needs a width: give width, too.")
    return Spec(
        name="sparse-transformer", vocab=vocab, **replace(sizes, length=length).fields, initialisation="fan-in",
        position=Grid(width=stride) if width is None else Grid(width=width, height=height, channels=channels),
        pattern=spread(factorised, use, sizes.heads), residual=PreNorm(), depth=Stacked(layers=layers),
        feedforward=sizes.feedforward, head=LanguageModel(tied=False),
    )  # fmt: skip


def spread(pattern: Strided | Fixed, use: str, heads: int) -> Pattern:
    """A factorised pattern as a model uses it: its parts by layers, merged, or by heads."""
    if use == "merged":
        return pattern
    parts = pattern.parts()
    if use == "interleaved":
        return Alternate(*parts)
    if heads < len(parts):
        raise FormersError(f"use=heads needs a head for each of {len(parts)} parts, and heads={heads}: give more, or use=merged.")
    return PerHead(*(parts[head * len(parts) // heads] for head in range(heads)))  # E89
