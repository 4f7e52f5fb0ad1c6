"""Random parts: how the fields of every part of every slot are drawn, as JSON values, at small sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
"""Fields by name; a part is a mapping with its "kind"."""
STRANGER = 0.05
"""How often a slot takes any of its parts, whether it fits or not."""
ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "gelu-sigmoid")


class Drawing:
    """The random numbers of one spec, and the sizes that its parts depend on."""

    def __init__(self, seed: int, causal: bool = True) -> None:
        self.random = random.Random(seed)
        self.heads = self.one(1, 2, 2, 3, 4)
        self.dim = self.heads * self.number(max(1, 4 // self.heads), 16 // self.heads)
        self.layers, self.length, self.vocab = self.number(1, 4), self.number(6, 16), self.number(5, 11)
        self.channels = self.number(1, 3)
        """Channels of a pixel, where a position is one."""
        self.causal = causal
        """Whether a causal pattern is wanted."""
        self.image: Fields | None = None
        """The order of an image's cells, where the spec is of one."""
        self.depth = 0
        """How many patterns the pattern that is being drawn is inside of."""

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def some(self, p: float, **fields: Any) -> Fields:
        """Each of the fields with probability p; the others keep their defaults."""
        return {name: value for name, value in fields.items() if self.chance(p)}

    def part(self, slot: str, kinds: tuple[str, ...] = ()) -> Fields:
        """A part of a slot, usually of one of some kinds: one that is named twice is drawn twice as often."""
        every = tuple(PARTS[slot])
        kind = self.one(*every) if not kinds or self.chance(STRANGER) else self.one(*kinds)
        return {"kind": kind, **PARTS[slot][kind](self)}

    def pattern(self) -> Fields:
        """A pattern, causal if that is wanted; inside of others the more often a simple one."""
        combined = ("Union", "Intersection", "PerHead", "Alternate") if self.chance(0.4 / (1 + self.depth)) else ()
        simple = ("Causal", "Causal", "Local", "Local", "Blocks", "Column", "Strided", "Summary", "Fixed", "LocalGrid")
        open_ = () if self.causal else ("Full", "Full", "Full", "BigBird", "BigBird", "Globals", "Local", "LocalGrid")
        self.depth += 1
        drawn = self.part("pattern", combined or (*simple, *open_))
        self.depth -= 1
        return drawn

    def plain_pattern(self) -> Fields:
        """Causal, or Full if no causal pattern is wanted; sometimes inside of a pattern that comes to the same."""
        plain = {"kind": "Causal" if self.causal else "Full"}
        if self.chance(0.8):
            return plain
        kind = self.one("Alternate", "PerHead", "Union", "Intersection")
        if kind in ("Union", "Intersection"):
            return {"kind": kind, "first": plain, "second": plain}
        return {"kind": kind, "patterns": [plain] * (self.heads if kind == "PerHead" else self.number(1, 2))}


def nothing(d: Drawing) -> Fields:
    return {}


def layers(d: Drawing) -> Fields:
    return {"layers": d.layers}


def two(d: Drawing) -> Fields:
    return {"first": d.pattern(), "second": d.pattern()}


def per_head(d: Drawing) -> Fields:
    return {"patterns": [d.pattern() for _ in range(d.heads if d.chance(0.95) else d.number(1, 4))]}


def summaries(d: Drawing) -> Fields:
    stride = d.number(1, 6)
    return {"stride": stride, "summary": d.number(1, stride), **d.some(0.2, subblocks=d.number(1, 3))}


def local_grid(d: Drawing) -> Fields:
    width = d.number(2, 6)
    height = -(-d.length // width) + d.number(0, 2) if d.chance(0.9) else d.number(1, 3)
    rows = 1 if d.causal and d.chance(0.6) else d.number(1, 3)
    return {"height": height, "width": width, "query": [rows, d.number(1, 4)], "memory": [d.number(0, 2), d.number(0, 2)]}


def raster(d: Drawing) -> Fields:
    """The order of an image's cells; one of a spec is drawn before its parts."""
    if d.image is not None and d.chance(0.98):
        return d.image
    height, width, channels = d.number(1, 4), d.number(1, 4), d.one(1, 1, 2, 3)
    return {"height": height, "width": width, "channels": channels, **d.some(0.5, block=[d.number(1, height), d.number(1, width)])}


def ordered_grid(d: Drawing) -> Fields:
    image = raster(d)
    query = image.get("block") or [image["height"], image["width"]]
    grid = {"height": image["height"], "width": image["width"], "query": query, "memory": [d.number(0, 2), d.number(0, 2)]}
    return {"grid": grid, "channels": image["channels"]}


def big_bird(d: Drawing) -> Fields:
    return {
        "block": d.number(1, 4),
        "window": d.one(1, 3),
        "global_blocks": d.number(0, 3),
        "random_blocks": d.number(0, 2),
        "seed": d.number(0, 9),
    }


def axial(d: Drawing) -> Fields:
    rows, wide = d.number(1, 5), d.number(1, max(1, d.dim - 1))
    shape = [rows, -(-d.length // rows) + d.number(0, 1)]
    return {**d.some(0.4, shape=shape), **d.some(0.4, dims=[wide, d.dim - wide if d.dim > wide else 1])}


def grid(d: Drawing) -> Fields:
    width, channels = d.number(1, 5), d.one(1, 1, 2)
    return {"width": width, "channels": channels, **d.some(0.2, height=max(1, d.length // (width * channels)))}


def coordinate(d: Drawing) -> Fields:
    return d.some(0.4, place=d.one("none", "sinusoidal"), step=d.one("learned", "none", "sinusoidal"), offset=d.number(0, 4))


def aligned(d: Drawing) -> Fields:
    return {
        "cell": d.one("tanh", "gru", "lstm"),
        "layers": d.number(1, 2),
        "alignment": d.one("none", "additive", "dot", "general"),
        "feeding": d.chance(0.5),
    }


def low_rank(d: Drawing) -> Fields:
    rank = d.number(1, d.length) if d.chance(0.95) else d.length + 1
    sharing = d.one("none", "headwise", "key-value", "layerwise")
    return {"rank": rank, "sharing": sharing, "projection": d.one("linear", "mean", "conv"), **d.some(0.2, bias=False)}


def lsh(d: Drawing) -> Fields:
    return {
        "rounds": d.number(1, 3),
        "chunk": d.number(1, 4),
        **d.some(0.7, buckets=d.one(2, 4, 6, [2, 2], [4, 2])),
        **d.some(0.3, reach="chunk", look_back=d.number(0, 2), look_ahead=d.number(0, 1)),
        **d.some(0.2, duplicates=True, across_buckets=True, itself="always", wrap="rounds", scaled=False, bias=True),
        **d.some(0.2, evaluation_rounds=d.number(1, 3), seed=d.number(0, 5), key_epsilon=0.01),
    }


def by_layer(d: Drawing) -> Fields:
    each = ("DotProduct", "SharedQK", "LSH", "LSH", "LowRank") if d.chance(0.7) else ("Recurrent", "Pondering", "Window", "Aligned")
    first = d.part("attention", each)
    return {"parts": [first, *((first if d.chance(0.3) else d.part("attention", each)) for _ in range(d.one(0, 0, 1, 1, 2)))]}


def pondering(d: Drawing) -> Fields:
    return {
        "cell": d.one("tanh", "gru", "lstm"),
        "steps": d.number(1, 4),
        "act": d.one("graves", "t2t", "none"),
        **d.some(0.6, epsilon=d.one(0.1, 0.3), bias=d.one(-0.5, -1.0), ponder=d.one(0.0, 0.1)),
    }


def adaptive(d: Drawing) -> Fields:
    return {"layers": d.layers, "act": d.one("graves", "t2t"), **d.some(0.6, epsilon=d.one(0.1, 0.3), bias=-0.5, ponder=d.one(0.0, 0.1))}


def span(d: Drawing) -> Fields:
    return {"span": d.number(1, 20), "ramp": d.number(1, 5), **d.some(0.4, penalty=0.1, init=d.one(0.1, 0.5))}


def norm(d: Drawing) -> Fields:
    return d.some(0.2, epsilon=0.01, final=d.chance(0.5))


def gated(d: Drawing) -> Fields:
    kind = d.one("gru", "gru", "output", "input", "highway", "sigtanh", "sum")
    return {"gate": kind, **norm(d), **({} if kind in ("input", "sum") else d.some(0.3, bias=d.one(0.0, 0.5, 3.0)))}


def hidden(d: Drawing) -> Fields:
    return {"hidden": d.number(1, 12), **d.some(0.6, activation=d.one(*ACTIVATIONS)), **d.some(0.3, dropout=0.2)}


def dense(d: Drawing) -> Fields:
    return {**hidden(d), **d.some(0.2, activation="swiglu")}


def words(d: Drawing) -> Fields:
    return d.some(0.3, tied=False, label_smoothing=0.1, chunk=d.number(1, 6), bias=True)


def adaptive_softmax(d: Drawing) -> Fields:
    cutoffs = sorted(d.random.sample(range(1, d.vocab), k=d.number(0, 2)))
    return {
        "cutoffs": cutoffs,
        "division": d.one(1, 1, 2),
        "tied_projections": d.one("all", "tails", "none"),
        **d.some(0.2, tied=False, bias=False),
    }


def auxiliary(d: Drawing) -> Fields:
    return {
        **words(d),
        "intermediate": d.one("cut-off", "decay", "constant", "none"),
        "targets": d.number(1, 3),
        **d.some(0.2, future_weight=0.3),
    }


PARTS: dict[str, dict[str, Callable[[Drawing], Fields]]] = {
    "input": {
        "Tokens": nothing,
        "Facts": lambda d: {"words": d.number(1, 3)},
        "Features": nothing,
        "Observations": lambda d: d.some(0.5, images=[[1, 1, 1]]),
        "ChannelValues": lambda d: {"channels": raster(d)["channels"], **d.some(0.1, shifted=False)},
        "Pixels": lambda d: d.some(0.3, activation="none", shifted=d.chance(0.8)),
    },
    "position": {
        "NoPosition": nothing,
        "Learned": nothing,
        "PerLayer": nothing,
        "Sinusoidal": lambda d: d.some(0.3, offset=d.number(0, 4)),
        "Coordinate": coordinate,
        "Axial": axial,
        "Grid": grid,
        "ImagePosition": lambda d: {"raster": raster(d), **d.some(0.5, form="learned")},
    },
    "pattern": {
        "Full": nothing,
        "Causal": nothing,
        "Local": lambda d: {"window": d.number(1, 6), "causal": d.causal, **d.some(0.3, include_self=False)},
        "Blocks": lambda d: {"query": d.number(1, 5), "memory": d.number(0, 5)},
        "LocalGrid": local_grid,
        "OrderedGrid": ordered_grid,
        "Column": lambda d: {"stride": d.number(1, 5)},
        "Strided": lambda d: {"stride": d.number(1, 5)},
        "Summary": summaries,
        "Fixed": summaries,
        "BigBird": big_bird,
        "Globals": lambda d: {"tokens": d.number(1, 4)},
        "Union": two,
        "Intersection": two,
        "PerHead": per_head,
        "Alternate": lambda d: {"patterns": [d.pattern() for _ in range(d.number(1, 3))]},
    },
    "attention": {
        "DotProduct": lambda d: d.some(0.3, scaled=False, bias=False),
        "SharedQK": lambda d: d.some(0.3, scaled=False, bias=True, key_epsilon=0.01),
        "LSH": lsh,
        "LowRank": low_rank,
        "ByLayer": by_layer,
        "Recurrent": lambda d: {"cell": d.one("tanh", "gru", "lstm"), **({} if d.causal else d.some(0.6, direction="both"))},
        "Pondering": pondering,
        "Window": lambda d: {"window": d.number(1, 3), "activation": d.one("relu", "gelu", "tanh")},
        "Aligned": aligned,
    },
    "score": {
        "NoScore": nothing,
        "Relative": lambda d: d.some(0.5, clamp=d.number(1, 6), untied=True),
        "FixedSpan": lambda d: {"span": d.number(1, 20)},
        "Span": span,
        "DynamicSpan": span,
    },
    "memory": {
        "NoMemory": nothing,
        "Carry": nothing,
        "Recurrence": lambda d: {"length": d.one(0, 1, 2, 3, 5, 8, 30, 30), **d.some(0.25, start="zeros")},
    },
    "residual": {
        "Bare": nothing,
        "PostNorm": norm,
        "PreNorm": norm,
        "Gated": gated,
        "Plain": lambda d: d.some(0.5, of="post"),
        "NormOnly": lambda d: {**norm(d), **d.some(0.5, of="pre")},
        "Reversible": lambda d: {**norm(d), "ends": d.one("mean", "mean", "concat", "sum")},
    },
    "depth": {"Stacked": layers, "Shared": layers, "Adaptive": adaptive},
    "feedforward": {
        "NoFeedForward": nothing,
        "Dense": dense,
        "Chunked": lambda d: {**dense(d), "chunk": d.number(1, 5)},
        "SeparableConv": lambda d: {**hidden(d), "kernels": [d.number(1, 4), d.number(1, 4)]},
    },
    "head": {
        "NoHead": nothing,
        "LanguageModel": words,
        "MaskedLM": words,
        "Auxiliary": auxiliary,
        "AdaptiveSoftmax": adaptive_softmax,
        "Classify": lambda d: {"classes": d.number(1, 4), **d.some(0.6, pool=d.one("first", "last"))},
        "PolicyValue": lambda d: {"choices": [d.number(1, 4)], **d.some(0.3, gain=1.0, scale=0.5), **d.some(0.05, low=[0.0], high=[1.0])},
        "PixelCategorical": lambda d: d.some(0.3, bias=False),
        "PixelMixture": lambda d: {"mixtures": d.number(1, 3), "channels": d.channels, "levels": d.number(2, 9), **d.some(0.3, bias=True)},
        "Tag": lambda d: {"classes": d.number(1, 4), **d.some(0.3, places=d.number(1, 2))},
    },
}
"""How the fields of a part are drawn, by slot and kind."""
