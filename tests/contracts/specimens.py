"""Small specimens of everything registered. Whoever registers a pattern or a member adds its specimens here, and is tested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, get_type_hints

import torch
from torch import Tensor

import formers
from formers import Model, Output, Spec, State
from formers.attention import LSH, ByLayer, DotProduct, LowRank, SharedQK
from formers.core import Part, Raster, Slot
from formers.depth import Adaptive, Shared, Stacked
from formers.feedforward import Chunked, Dense, NoFeedForward, SeparableConv
from formers.heads import (
    AdaptiveSoftmax,
    Auxiliary,
    Classify,
    LanguageModel,
    MaskedLM,
    NoHead,
    PixelCategorical,
    PixelMixture,
    PolicyValue,
    Tag,
)
from formers.inputs import ChannelValues, Facts, Features, Observations, Pixels, Tokens
from formers.memory import Carry, NoMemory, Recurrence
from formers.patterns import (
    Alternate,
    BigBird,
    Blocks,
    Causal,
    Column,
    Fixed,
    Full,
    Globals,
    Local,
    LocalGrid,
    OrderedGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)
from formers.position import Axial, Coordinate, Grid, ImagePosition, Learned, NoPosition, PerLayer, Sinusoidal
from formers.recurrent import Aligned, Pondering, Recurrent, Window
from formers.residual import Bare, Gated, NormOnly, Plain, PostNorm, PreNorm, Reversible
from formers.score import DynamicSpan, FixedSpan, NoScore, Relative, Span

BLOCK = 8
"""The block of every specimen that has one; lengths 1 ... 2 * BLOCK + 1 are swept."""
LENGTHS = range(1, 2 * BLOCK + 2)

PATTERNS: dict[str, list[Pattern]] = {
    "Full": [Full()],
    "Causal": [Causal()],
    "Local": [
        Local(window=1),
        Local(window=3),
        Local(window=3, include_self=False),
        Local(window=2, causal=False),
        Local(window=2, causal=False, include_self=False),
    ],
    "Blocks": [Blocks(query=4, memory=3), Blocks(query=3, memory=0), Blocks(query=1, memory=5)],
    "LocalGrid": [  # wide and high enough for the longest row that is swept
        LocalGrid(height=12, width=8, query=(2, 4), memory=(2, 2)),
        LocalGrid(height=14, width=7, query=(2, 3), memory=(1, 3)),
        LocalGrid(height=12, width=8, query=(1, 3), memory=(2, 2)),
        LocalGrid(height=12, width=8, query=(2, 3), memory=(1, 0)),
    ],
    "OrderedGrid": [
        OrderedGrid(grid=LocalGrid(height=25, width=4, query=(2, 3), memory=(2, 2))),
        OrderedGrid(grid=LocalGrid(height=11, width=3, query=(2, 2), memory=(1, 3)), channels=3),
        OrderedGrid(grid=LocalGrid(height=10, width=10, query=(4, 4), memory=(0, 1))),
    ],
    "Column": [Column(stride=4), Column(stride=1)],
    "Strided": [Strided(stride=4), Strided(stride=BLOCK), Strided(stride=1)],
    "Summary": [Summary(stride=4, summary=1), Summary(stride=5, summary=2, subblocks=2), Summary(stride=3, summary=3)],
    "Fixed": [
        Fixed(stride=4, summary=1),
        Fixed(stride=BLOCK, summary=3),
        Fixed(stride=5, summary=2, subblocks=2),
        Fixed(stride=3, summary=3),
    ],
    "BigBird": [
        BigBird(block=2, window=1, global_blocks=1, random_blocks=1, seed=3),
        BigBird(block=2, window=3, global_blocks=3, random_blocks=0),
        BigBird(block=3, window=1, global_blocks=0, random_blocks=2),
    ],
    "Globals": [Globals(tokens=3), Globals(tokens=8)],
    "PerHead": [PerHead(*Fixed(stride=4, summary=1).parts()), PerHead(Full(), Causal())],
    "Alternate": [
        Alternate(*Strided(stride=4).parts()),
        Alternate(Local(window=2), Local(window=5), Blocks(query=3, memory=1)),
        Alternate(PerHead(Local(window=3), Causal()), BigBird(block=2, window=1)),
    ],
    "Union": [
        Local(window=2) | Local(window=4, include_self=False),
        Causal() | Local(window=3, causal=False),
        Globals(tokens=2) | BigBird(block=3, window=1, global_blocks=0, random_blocks=1),
    ],
    "Intersection": [Causal() & Local(window=3, causal=False), Full() & Local(window=2, causal=False, include_self=False)],
}

# The parts of the other slots of a spec, by slot.
PARTS: dict[str, dict[str, list[Part]]] = {
    "input": {
        "Tokens": [Tokens()],
        "Facts": [Facts(words=3)],
        "Features": [Features()],
        "Observations": [Observations(), Observations(images=((1, 3, 1),)), Observations(images=((2, 1, 1), (1, 1, 2)))],
        "ChannelValues": [ChannelValues(), ChannelValues(channels=3), ChannelValues(channels=2, shifted=False)],
        "Pixels": [Pixels(), Pixels(shifted=False, activation="none")],
    },
    "position": {
        "NoPosition": [NoPosition()],
        "Axial": [Axial(), Axial(shape=(7, 5), dims=(6, 10))],
        "Grid": [Grid(width=5), Grid(width=4, height=4, channels=2)],
        "ImagePosition": [
            ImagePosition(raster=Raster(height=6, width=6)),
            ImagePosition(raster=Raster(height=6, width=3, channels=2, block=(4, 2)), form="learned"),
        ],
        "Learned": [Learned()],
        "PerLayer": [PerLayer()],
        "Sinusoidal": [Sinusoidal(), Sinusoidal(offset=9)],
        "Coordinate": [Coordinate(), Coordinate(step="learned", offset=5), Coordinate(place="none"), Coordinate(step="none")],
    },
    "attention": {
        "DotProduct": [DotProduct(), DotProduct(scaled=False, bias=False)],
        "Aligned": [
            *(Aligned(alignment=alignment) for alignment in ("none", "additive", "dot", "general")),
            Aligned(cell="gru", layers=2, alignment="additive", feeding=False),
            Aligned(cell="tanh", layers=3, alignment="general", feeding=False),
        ],
        "LowRank": [
            *(LowRank(rank=5, sharing=sharing) for sharing in ("none", "headwise", "key-value", "layerwise")),
            LowRank(rank=12, projection="mean"),
            *(LowRank(rank=12, sharing=sharing, projection="conv") for sharing in ("none", "headwise", "key-value", "layerwise")),
            LowRank(rank=9, sharing="headwise", bias=False),
        ],
        "SharedQK": [SharedQK(), SharedQK(scaled=False, bias=True, key_epsilon=1e-2)],
        "LSH": [  # chunks and buckets so small that the rows that are swept have several
            LSH(chunk=2, buckets=4),
            LSH(chunk=3, rounds=3, buckets=(2, 2), duplicates=True, itself="always", bias=True),
            LSH(chunk=2, buckets=4, reach="chunk", key_epsilon=1e-2),
            LSH(chunk=2, buckets=2, reach="chunk", across_buckets=True, duplicates=True, wrap="rounds", scaled=False, evaluation_rounds=3),
            LSH(chunk=1, reach="chunk", look_back=2, look_ahead=1, seed=5),
        ],
        "Recurrent": [Recurrent(cell=cell, direction=way) for way in ("forward", "both") for cell in ("tanh", "gru", "lstm")],
        "Window": [Window(window=1), Window(window=3, activation="gelu"), Window(window=2, activation="tanh")],
        "Pondering": [  # epsilon so large that some halt before the others
            Pondering(steps=4, epsilon=0.3, bias=-0.5),
            Pondering(cell="lstm", steps=3, epsilon=0.3, bias=-0.5, act="t2t"),
            Pondering(cell="gru", steps=2, act="none"),
            Pondering(cell="lstm", steps=1, act="none"),
        ],
        "ByLayer": [ByLayer(DotProduct(bias=False), LSH(chunk=2, buckets=4)), ByLayer(LSH(chunk=2, buckets=2), SharedQK())],
    },
    "score": {
        "NoScore": [NoScore()],
        "Relative": [Relative(), Relative(clamp=3, untied=True)],
        "FixedSpan": [FixedSpan(span=4)],
        "Span": [Span(span=9, ramp=4, init=0.2), Span(span=100, ramp=5, penalty=0.1)],
        "DynamicSpan": [DynamicSpan(span=9, ramp=2, penalty=0.1), DynamicSpan(span=100)],
    },
    "memory": {"Carry": [Carry()], "NoMemory": [NoMemory()], "Recurrence": [Recurrence(length=200)]},
    "residual": {
        "Bare": [Bare()],
        "Gated": [
            *(Gated(kind=kind) for kind in ("gru", "output", "input", "highway", "sigtanh", "sum")),
            Gated(kind="gru", bias=0.5, epsilon=1e-3, final=True),
        ],
        "NormOnly": [NormOnly(), NormOnly(of="pre"), NormOnly(epsilon=1e-3, final=True)],
        "Plain": [Plain(), Plain(of="post")],
        "PostNorm": [PostNorm(), PostNorm(epsilon=1e-12, final=True)],
        "PreNorm": [PreNorm(), PreNorm(epsilon=1e-3, final=False)],
        "Reversible": [Reversible(), Reversible(ends="concat", epsilon=1e-6), Reversible(ends="sum", final=False)],
    },
    "depth": {
        "Stacked": [Stacked(layers=2)],
        "Shared": [Shared(layers=3)],
        "Adaptive": [Adaptive(layers=4, epsilon=0.1), Adaptive(layers=3, bias=-1.0), Adaptive(layers=4, epsilon=0.1, act="t2t")],
    },
    "feedforward": {
        "NoFeedForward": [NoFeedForward()],
        "Dense": [
            *(Dense(hidden=20, activation=name) for name in ("relu", "gelu", "gelu-tanh", "gelu-sigmoid", "swiglu")),
            Dense(hidden=20, dropout=0.1),
        ],
        "SeparableConv": [SeparableConv(hidden=20), SeparableConv(hidden=12, kernels=(4, 1), activation="gelu", dropout=0.1)],
        "Chunked": [Chunked(hidden=20, chunk=2), Chunked(hidden=20, activation="swiglu", dropout=0.1, chunk=4)],
    },
    "head": {
        "NoHead": [NoHead()],
        "LanguageModel": [
            LanguageModel(),
            LanguageModel(tied=False, label_smoothing=0.1),
            LanguageModel(chunk=5, label_smoothing=0.1, bias=True),
        ],
        "Auxiliary": [Auxiliary(), Auxiliary(intermediate="decay", targets=3, tied=False, chunk=4), Auxiliary(intermediate="none")],
        "MaskedLM": [MaskedLM(), MaskedLM(tied=False, chunk=4), MaskedLM(bias=True)],
        "AdaptiveSoftmax": [
            AdaptiveSoftmax(cutoffs=()),
            AdaptiveSoftmax(cutoffs=(4, 7)),
            AdaptiveSoftmax(cutoffs=(4, 7), division=2, bias=False),
            AdaptiveSoftmax(cutoffs=(3,), division=4, tied_projections="all"),
            AdaptiveSoftmax(cutoffs=(4, 7), division=2, tied=False, tied_projections="none"),
        ],
        "Classify": [Classify(classes=3), Classify(classes=2, pool="first"), Classify(classes=2, pool="last")],
        "PolicyValue": [PolicyValue(choices=(3,)), PolicyValue(choices=(2, 4), gain=1.0), PolicyValue(low=(-1.0, 0.0), high=(1.0, 5.0))],
        "Tag": [Tag(classes=3), Tag(classes=3, places=2)],
        "PixelCategorical": [PixelCategorical(), PixelCategorical(bias=False)],
        "PixelMixture": [PixelMixture(mixtures=2), PixelMixture(mixtures=3, channels=1, levels=17, bias=True)],
    },
}

SMALL = {"dim": 16, "layers": 2, "length": 32, "dropout": 0.0}
"""Of members without heads."""
TINY = {"dim": 16, "heads": 2, "layers": 2, "hidden": 24, "length": 32, "dropout": 0.0}
PLAIN = {name: size for name, size in TINY.items() if name != "length"}
"""The same of a member whose length is that of an image."""
ONCE = {**{name: size for name, size in TINY.items() if name != "layers"}, "steps": 3}
"""The same of a member with one block."""
VOCAB = 11

MEMBERS: dict[str, list[dict[str, Any]]] = {
    "transformer": [
        {"vocab": VOCAB, **TINY},
        {"vocab": VOCAB, "source_vocab": 7, "norm": "pre", "position": "learned", "value_dim": 5, "tied": False, **TINY},
        {"vocab": VOCAB, "norm": "reversible", **TINY},
    ],
    "encoder": [
        {"vocab": VOCAB, **TINY},
        {"vocab": VOCAB, "classes": 3, "pool": "first", "norm": "post", "position": "learned", **TINY},
        {"features": 4, "classes": 3, "position": "none", **TINY},
        {"vocab": VOCAB, "fact": 3, "classes": 3, "pool": "last", **TINY},
    ],
    "decoder": [
        {"vocab": VOCAB, **TINY},
        {"vocab": VOCAB, "position": "learned", "norm": "post", "activation": "relu", "embedding_scale": "output", **TINY},
        {"vocab": VOCAB, "norm": "reversible", **TINY},
        {"vocab": VOCAB, "position": "none", "head_dim": 3, "value_dim": 5, "activation": "swiglu", "tied": False, **TINY},
        {"vocab": VOCAB, "position": "axial", "loss_chunk": 7, **TINY},
    ],
    "character-transformer": [
        {"vocab": VOCAB, **TINY},
        {"vocab": VOCAB, "auxiliary": False, "norm": "post", "tied": False, **TINY},
        {"vocab": VOCAB, "intermediate": "decay", "targets": 1, "position": "sinusoidal", "norm": "post", "head_dim": 3, **TINY},
    ],
    "transformer-xl": [
        {"vocab": VOCAB, "memory": 200, **TINY},
        {"vocab": VOCAB, "memory": 5, "same_length": True, "untied": True, "clamp": 3, "norm": "post", "head_dim": 3, **TINY},
        {"vocab": VOCAB, "memory": 200, "norm": "reversible", **TINY},
        {"vocab": VOCAB, "memory": 200, "cutoffs": (4, 7), "division": 2, **TINY},
    ],
    "gtrxl": [
        {"vocab": VOCAB, "memory": 5, **TINY},
        {"vocab": VOCAB, "memory": 200, "same_length": False, "gate": "output", "gate_bias": 0.5, "head_dim": 3, **TINY},
        {"vocab": VOCAB, "memory": 3, "gate": "sum", "tied": False, **TINY},
        {"vocab": VOCAB, "memory": 7, "norm": "post", **TINY},
        {"vocab": VOCAB, "memory": 7, "gate": "highway", "untied": False, **TINY},
    ],
    "adaptive-span": [
        {"vocab": VOCAB, "span": 9, "ramp": 3, "span_penalty": 0.1, "init": 0.3, **TINY},
        {"vocab": VOCAB, "span": 9, "ramp": 3, "span_penalty": 0.1, "dynamic": True, "norm": "post", "head_dim": 3, **TINY},
        {"vocab": VOCAB, "span": 90, "ramp": 2, "init": 0.02, "memory": 100, "tied": False, **TINY},
        {"vocab": VOCAB, "span": 9, "ramp": 3, "span_penalty": 0.1, "init": 0.3, "norm": "reversible", **TINY},
        {"vocab": VOCAB, "span": 5, "fixed": True, **TINY},
    ],
    "sparse-transformer": [
        {"vocab": VOCAB, "pattern": "fixed", "use": "merged", "stride": 4, "summary": 1, **TINY},
        {"vocab": VOCAB, "pattern": "fixed", "use": "interleaved", "stride": 5, "summary": 2, **TINY},
        {"vocab": VOCAB, "pattern": "fixed", "use": "heads", "stride": 4, "summary": 1, "subblocks": 1, **TINY},
        {"vocab": VOCAB, "pattern": "strided", "use": "merged", "stride": 5, "head_dim": 3, "value_dim": 5, **TINY},
        {"vocab": VOCAB, "pattern": "strided", "use": "interleaved", "width": 4, "channels": 2, **TINY},
        {"vocab": VOCAB, "pattern": "strided", "use": "heads", "stride": 4, **TINY},
    ],
    "image-transformer": [  # images so large that the rows that are swept fit
        {"levels": VOCAB, "height": 7, "width": 6, "query_block": 5, "memory_block": 4, **PLAIN},
        {"levels": VOCAB, "height": 7, "width": 6, "condition": "class", "labels": 3, **PLAIN},
        {"levels": VOCAB, "height": 5, "width": 5, "channels": 2, "query_block": 3, "memory_block": 7, "position": "learned", **PLAIN},
        {"levels": VOCAB, "height": 7, "width": 7, "layout": "2d", "query_block": (3, 2), "memory_block": (2, 1), "norm": "pre", **PLAIN},
        {
            "levels": VOCAB,
            "height": 4,
            "width": 5,
            "channels": 3,
            "layout": "2d",
            "query_block": (2, 3),
            "memory_block": (1, 2),
            "norm": "reversible",
            **PLAIN,
        },
        {"levels": VOCAB, "height": 7, "width": 6, "channels": 3, "head": "mixture", "mixtures": 2, **PLAIN},
        {"levels": VOCAB, "height": 6, "width": 7, "head": "mixture", "mixtures": 2, "layout": "2d", "query_block": (2, 4), **PLAIN},
        {"levels": VOCAB, "height": 6, "width": 6, "condition": "small", "encoder_layers": 1, **PLAIN},
        {"levels": VOCAB, "height": 6, "width": 6, "head": "mixture", "mixtures": 2, "channels": 3, "condition": "grey", **PLAIN},
    ],
    "linformer": [
        {"vocab": VOCAB, "rank": 6, **TINY},
        {"vocab": VOCAB, "rank": 6, "sharing": "none", "position": "learned", "norm": "post", **TINY},
        {"vocab": VOCAB, "rank": 32, "sharing": "headwise", "value_dim": 5, "tied": False, **TINY},
        {"features": 4, "classes": 3, "rank": 9, "sharing": "key-value", **TINY},
        {"vocab": VOCAB, "classes": 3, "pool": "first", "rank": 9, "projection": "mean", **TINY},
        {"vocab": VOCAB, "rank": 9, "projection": "conv", **TINY},
    ],
    "bigbird": [  # blocks so small that the rows that are swept have random ones, and rows of different lengths different ones
        {"vocab": VOCAB, "block": 1, "window": 1, "random_blocks": 1, **TINY},
        {"vocab": VOCAB, "classes": 3, "pool": "first", "block": 2, "window": 1, "extra": 3, "position": "learned", **TINY},
        {"vocab": VOCAB, "block": 2, "window": 1, "extra": 2, "norm": "reversible", **TINY},
        {"vocab": VOCAB, "decoder_layers": 1, "block": 2, "window": 1, "global_blocks": 1, "extra": 1, "norm": "post", **TINY},
        {"features": 4, "classes": 3, "block": 2, "random_blocks": 0, "position": "none", **TINY},
    ],
    "rnn": [
        {"vocab": VOCAB, **SMALL},
        {"vocab": VOCAB, "cell": "gru", "norm": "pre", "tied": False, **SMALL},
        {"vocab": VOCAB, "cell": "tanh", "cutoffs": (4, 7), "division": 2, **SMALL},
    ],
    "word-window": [
        {"vocab": VOCAB, **SMALL},
        {"vocab": VOCAB, "window": 3, "norm": "pre", "activation": "gelu", "tied": False, **SMALL},
        {"vocab": VOCAB, "causal": False, **SMALL},
        {"vocab": VOCAB, "classes": 3, "pool": "first", "window": 1, "norm": "post", "activation": "tanh", **SMALL},
    ],
    "act-rnn": [
        {"vocab": VOCAB, "steps": 3, "halt_epsilon": 0.3, "halt_bias": -0.5, **SMALL},
        {"vocab": VOCAB, "cell": "lstm", "steps": 4, "halt_epsilon": 0.3, "halt_bias": -1.0, "ponder": 0.0, "norm": "pre", **SMALL},
        {"vocab": VOCAB, "cell": "gru", "steps": 3, "act": "t2t", "halt_epsilon": 0.3, "halt_bias": -0.5, "tied": False, **SMALL},
        {"vocab": VOCAB, "cell": "lstm", "steps": 1, "act": "none", **SMALL},
        {"vocab": VOCAB, "cell": "tanh", "steps": 3, "act": "none", **SMALL},
    ],
    "reformer": [  # those that reach by chunk are encoders: the contracts of causal members hold for whole buckets
        {"vocab": VOCAB, "chunk": 4, "buckets": 4, **TINY},
        {"vocab": VOCAB, "attention": ("local", "lsh"), "chunk": 4, "buckets": (2, 2), "rounds": 3, "head_dim": 3, "value_dim": 5, **TINY},
        {
            "vocab": VOCAB,
            "chunk": 2,
            "buckets": 2,
            "ends": "concat",
            "tied": False,
            "ff_chunk": 5,
            "loss_chunk": 7,
            "duplicates": True,
            **TINY,
        },
        {"vocab": VOCAB, "attention": ("full", "separate"), "norm": "pre", "position": "learned", "scaled": False, **TINY},
        {"vocab": VOCAB, "causal": False, "chunk": 3, "buckets": 4, "reach": "chunk", "attention": ("lsh", "local"), **TINY},
        {"vocab": VOCAB, "classes": 3, "chunk": 3, "reach": "chunk", "across_buckets": True, "duplicates": True, "wrap": "rounds", **TINY},
        {"features": 4, "classes": 3, "chunk": 4, "buckets": 4, "position": "none", "norm": "post", **TINY},
        {"vocab": VOCAB, "decoder_layers": 1, "chunk": 2, "buckets": 2, "ends": "sum", **TINY},
    ],
    "seq2seq": [
        {"vocab": VOCAB, **SMALL},
        {"vocab": VOCAB, "alignment": "none", "source_vocab": 7, "bidirectional": False, **SMALL},
        {"vocab": VOCAB, "alignment": "multiplicative", "cell": "gru", "tied": False, **SMALL},
        {"vocab": VOCAB, "alignment": "dot", "feeding": False, **SMALL},
        {"vocab": VOCAB, "feeding": False, "cell": "tanh", **SMALL},
    ],
    "universal-transformer": [
        {"vocab": VOCAB, **ONCE},
        {"vocab": VOCAB, "transition": "conv", "step_signal": "learned", "offset": 7, "norm": "pre", "head_dim": 3, **ONCE},
        {"vocab": VOCAB, "memory": 200, "transition": "conv", **ONCE},
        {"vocab": VOCAB, "act": "graves", "halt_bias": -0.5, "transition": "conv", **ONCE},
        {"vocab": VOCAB, "act": "t2t", "halt_bias": -0.5, "norm": "pre", **ONCE},
        {"vocab": VOCAB, "memory": 200, "act": "graves", "halt_bias": -0.5, **ONCE},
        {"vocab": VOCAB, "transition": "conv", "norm": "reversible", "position": "sinusoidal", **ONCE},
        {"vocab": VOCAB, "causal": False, "transition": "conv", "offset": 3, **ONCE},
        {"features": 4, "classes": 3, "position": "none", "act": "graves", "halt_bias": -0.5, **ONCE},
        {"vocab": VOCAB, "fact": 3, "classes": 3, "pool": "last", "act": "graves", "halt_bias": -0.5, "position": "relative", **ONCE},
        {"vocab": VOCAB, "decoder_steps": 2, "transition": "conv", "offset": 5, **ONCE},
        {"vocab": VOCAB, "decoder_steps": 2, "act": "graves", "halt_bias": -0.5, **ONCE},
    ],
}


@dataclass(frozen=True, repr=False)
class Specimen:
    """A member with small options."""

    member: str
    options: dict[str, Any]

    @cached_property
    def spec(self) -> Spec:
        return formers.spec(self.member, **self.options)

    def __repr__(self) -> str:
        return "-".join([self.member, *(str(v) for k, v in self.options.items() if k not in TINY and k != "vocab")])


SPECIMENS = [Specimen(name, options) for name in formers.members() for options in MEMBERS.get(name, [])]
FIRST = [next(s for s in SPECIMENS if s.member == name) for name in formers.members() if MEMBERS.get(name)]
"""One specimen a member, for what is expensive."""
CAUSAL = [s for s in SPECIMENS if s.spec.is_causal]


def slots() -> dict[str, type[Slot]]:
    """The slots of a spec by name."""
    fields = get_type_hints(Spec)
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Slot)}


def part_classes() -> list[tuple[str, type[Slot]]]:
    """Every registered part of every slot but the pattern's."""
    return [(name, c) for name, kind in slots().items() if name in PARTS for c in dict.fromkeys(kind.values())]


def parts() -> list[tuple[str, Part]]:
    """The specimens of every registered part, with their slots."""
    return [(name, part) for name, c in part_classes() for part in PARTS[name].get(c.__name__, [])]


def pattern_classes() -> list[type[Pattern]]:
    """Every registered pattern that says whom it allows."""
    return [c for c in dict.fromkeys(Pattern.values()) if c.allows is not Pattern.allows]


def patterns() -> list[Pattern]:
    """The specimens of every registered pattern."""
    return [p for c in pattern_classes() for p in PATTERNS.get(c.__name__, [])]


@dataclass(frozen=True)
class Subject:
    """A model with all it reads beside its tokens, so that one call fits every member."""

    model: Model
    batch: int
    source: Tensor | None = None
    source_mask: Tensor | None = None
    label: Tensor | None = None

    def __call__(self, x: Tensor, state: State | None = None, mask: Tensor | None = None, targets: Tensor | None = None) -> Output:
        """The forward pass over x; a source is read only where the state has not read it."""
        return self.run(x, targets=targets, state=state, mask=mask)

    def run(self, x: Tensor, state: State | None = None, **given: Any) -> Output:
        """The same with any other argument of the model."""
        if self.label is not None:
            given["label"] = self.label
        if self.model.spec.encoder is None:
            return self.model(x, state=state, **given)
        source, source_mask = (self.source, self.source_mask) if state is None or state.empty else (None, None)
        return self.model(source, x, source_mask=source_mask, state=state, **given)

    def input(self, length: int) -> Tensor:
        """Random tokens (batch, length), or facts (batch, length, words), or vectors (batch, length, features)."""
        spec = self.model.spec
        return given_to(spec, self.batch, length, next(self.model.parameters()).dtype)

    def targets(self, length: int) -> Tensor:
        """Random targets of the shape that the head wants."""
        head = self.model.spec.head
        classes = (
            head.classes if isinstance(head, Classify | Tag) else head.levels if isinstance(head, PixelMixture) else self.model.spec.vocab
        )
        if isinstance(head, PolicyValue):
            classes = min(head.choices)
        return torch.randint(classes, head.target_shape(self.batch, length))

    def rows(self, index: list[int]) -> Subject:
        """The same model with the sources of these rows."""
        pick = [None if t is None else t[index] for t in (self.source, self.source_mask, self.label)]
        return replace(self, batch=len(index), source=pick[0], source_mask=pick[1], label=pick[2])

    def alone(self, row: int) -> Subject:
        """The same model with the real tokens of one row's source."""
        one = self.rows([row])
        if one.source is None or one.source_mask is None:
            return one
        return replace(one, source=one.source[:, one.source_mask[0]], source_mask=None)


def subject(spec: Spec, batch: int = 3, dtype: torch.dtype = torch.float64, source_length: int = 5) -> Subject:
    """A model of a spec with no parameter left at 0 or 1, in evaluation mode, and a random source where it reads one."""
    model = formers.build(spec).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    label = None if spec.labels is None else torch.randint(spec.labels, (batch,))
    if spec.encoder is None:
        return Subject(model, batch, label=label)
    reader = spec if spec.encoder.vocab is None and spec.encoder.features is None else spec.encoder
    return Subject(model, batch, given_to(reader, batch, source_length, dtype), label=label)


def lengthened(spec: Spec, length: int) -> Spec:
    """The spec with a larger length, and with higher images where it is of images."""
    if spec.image is None:
        return spec.model_copy(update={"length": length})
    raster = spec.image.replace(height=-(-length // (spec.image.width * spec.image.channels)))
    pattern = spec.pattern
    if isinstance(pattern, OrderedGrid):
        pattern = pattern.replace(grid=pattern.grid.replace(height=raster.height))
    return spec.replace(image=raster, length=raster.cells, position=spec.position.replace(raster=raster), pattern=pattern)


def given_to(spec: Spec, batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random ids (batch, length, ...), or vectors, as the input of a spec takes them."""
    if spec.input.vectors:
        return torch.randn(batch, length, spec.features, dtype=dtype)
    return torch.randint(spec.vocab, (batch, length, *spec.input.shape(None)))


@cache
def built(spec: Spec, batch: int = 3, dtype: torch.dtype = torch.float64) -> Subject:
    """The subject of a spec, made once: for tests that leave it as it was."""
    with torch.random.fork_rng(devices=[]):  # what a test draws does not depend on who made the model
        torch.manual_seed(7)
        return subject(spec, batch, dtype)
