"""Random specs: every part of every slot, at small sizes, in combinations that may or may not work together.

`draw(seed)` gives the fields of a spec as JSON values, `formers.Spec(**draw(seed))`, so that a spec whose construction fails can be
printed and made smaller, too. Most draws follow a purpose, whose parts usually fit together; one slot in twenty takes any part, and some
specs are drawn without any purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contracts.random_parts import PARTS, Drawing, Fields

WRAPPED = 0.12
"""How often a part is wrapped in one that takes several, alone."""
ONCE = ("NoPosition", "Learned", "Sinusoidal", "Axial", "Grid")
RESIDUAL = ("PostNorm", "PreNorm", "PreNorm", "Reversible", "Reversible", "Reversible", "Plain", "NormOnly", "Bare", "Gated")
WRITERS = ("LanguageModel", "LanguageModel", "AdaptiveSoftmax", "Auxiliary", "Tag", "NoHead")
PAIRED = ("LanguageModel", "LanguageModel", "AdaptiveSoftmax", "Auxiliary", "NoHead")
SCORES = ("NoScore", "NoScore", "NoScore", "Relative", "FixedSpan", "Span", "DynamicSpan")
RECURRENT = ("Recurrent", "Pondering", "Window", "ByLayer")

PURPOSES: dict[str, dict[str, tuple[str, ...]]] = {
    "stream": {"attention": ("DotProduct",), "memory": ("NoMemory",), "score": SCORES, "head": WRITERS},
    "hashed": {"attention": ("LSH", "LSH", "SharedQK", "ByLayer"), "memory": ("NoMemory",), "score": ("NoScore",), "head": WRITERS},
    "memory": {
        "position": ("NoPosition", "NoPosition", "Coordinate"),
        "attention": ("DotProduct",),
        "memory": ("Recurrence",),
        "score": SCORES,
        "head": (*WRITERS, "PolicyValue", "PolicyValue"),
    },
    "recurrent": {"attention": RECURRENT, "memory": ("NoMemory", "Carry"), "score": ("NoScore",), "head": (*WRITERS, "PolicyValue")},
    "whole": {
        "attention": ("DotProduct", "DotProduct", "LowRank", "LSH", "SharedQK", "Recurrent", "Window", "ByLayer"),
        "memory": ("NoMemory",),
        "score": ("NoScore", "NoScore", "NoScore", "Relative"),
        "head": ("MaskedLM", "Classify", "Classify", "Tag", "NoHead"),
    },
    "pair": {"attention": ("DotProduct", "DotProduct", "Aligned"), "memory": ("NoMemory",), "score": SCORES, "head": PAIRED},
    "image": {
        "position": ("ImagePosition", "ImagePosition", "NoPosition", "Learned"),
        "attention": ("DotProduct", "DotProduct", "DotProduct", "LSH"),
        "memory": ("NoMemory",),
        "score": ("NoScore", "NoScore", "Relative"),
        "head": ("PixelCategorical", "PixelMixture"),
    },
    "any": {},
}
"""The kinds that usually fit, by purpose and slot; any kind where a slot is not named."""
WEIGHTS = {"stream": 4, "hashed": 4, "memory": 4, "recurrent": 2, "whole": 5, "pair": 3, "image": 3, "any": 1}


def draw(seed: int) -> Fields:
    """The fields of a random spec, as JSON values: the same for the same seed everywhere."""
    d = Drawing(seed)
    return spec(d, d.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])


def spec(d: Drawing, purpose: str, encoder: bool = False) -> Fields:
    """The fields of a spec with a purpose."""
    kinds = {"residual": RESIDUAL, "position": (*ONCE, "PerLayer", "Coordinate"), **PURPOSES[purpose]}
    if purpose == "image":
        d.image = PARTS["position"]["ImagePosition"](d)["raster"]
    d.causal = purpose != "whole" and (purpose != "any" or d.chance(0.5))
    attention = d.part("attention", kinds.get("attention", ()))
    own = [part["kind"] for part in attention.get("parts", [attention])]
    fields: Fields = {
        "dim": d.dim,
        "heads": d.heads,
        "length": d.length,
        **d.some(0.2, head_dim=d.number(1, 4), value_dim=d.number(1, 4)),
        **d.some(0.85, dropout=0.2, attention_dropout=0.2),
        **d.some(0.2, embedding_scale=d.one("output", "none"), initialisation="fan-in"),
        "position": d.part("position", kinds.get("position", ())),
        "pattern": d.pattern(),
        "attention": attention,
        **{slot: d.part(slot, kinds.get(slot, ())) for slot in ("score", "memory", "residual", "depth", "feedforward", "head")},
    }
    if own != ["DotProduct"] and d.chance(0.95):  # the others want one of these
        fields["pattern"] = d.plain_pattern()
    if any(kind in ("LSH", "SharedQK", "LowRank", *RECURRENT) for kind in own) and d.chance(0.9):
        fields["score"] = {"kind": "NoScore"}
    if fields["residual"]["kind"] == "Reversible" and d.chance(0.9):
        fields["position"] = d.part("position", ONCE if fields["memory"]["kind"] == "NoMemory" else ("NoPosition",))
        fields["depth"] = d.part("depth", ("Stacked", "Shared"))
    if attention["kind"] == "ByLayer" and d.chance(0.9):
        fields["depth"] = d.part("depth", ("Stacked",))
    if "Aligned" in own and d.chance(0.9):
        fields["depth"], fields["pattern"] = {"kind": "Stacked", "layers": 1}, {"kind": "Causal"}
        fields["residual"] = d.part("residual", ("Bare", "Bare", "PostNorm", "PreNorm", "Plain", "NormOnly"))
    if fields["memory"]["kind"] != "NoMemory" and fields["position"]["kind"] == "Coordinate" and d.chance(0.9):
        fields["position"] = {"kind": "Coordinate", "place": "none", "step": d.one("sinusoidal", "learned")}
    if fields["memory"]["kind"] == "Recurrence" and d.chance(0.9):
        span, start = fields["score"].get("span", 0), fields["memory"].get("start", "empty")
        fields["memory"]["length"] = max(span, fields["memory"]["length"])
        fields["pattern"] = d.part("pattern", ("Causal", "Local")) if start == "zeros" else fields["pattern"]
    if fields["memory"]["kind"] == "Carry" and d.chance(0.8):
        fields["position"] = {"kind": "NoPosition"}
    if d.chance(WRAPPED):
        fields["attention"] = {"kind": "ByLayer", "parts": [attention] * d.one(1, 1, 2)}
        if d.chance(0.2):
            fields["attention"] = {"kind": "ByLayer", "parts": [fields["attention"]]}
    if d.chance(WRAPPED):
        kind = d.one("Alternate", "PerHead")
        fields["pattern"] = {"kind": kind, "patterns": [fields["pattern"]] * (d.heads if kind == "PerHead" else 1)}
    if purpose == "image":
        return {**fields, **cells(d, fields)}
    return {**fields, **inputs(d, fields, purpose, encoder)}


def cells(d: Drawing, fields: Fields) -> Fields:
    """What a spec of images reads: channel values or pixels in their order, perhaps of a class."""
    assert d.image is not None
    if fields["attention"]["kind"] == "DotProduct" and d.chance(0.6):
        fields["pattern"] = d.part("pattern", ("OrderedGrid", "OrderedGrid", "Blocks", "Causal"))
    image, pixels = d.image, fields["head"]["kind"] == "PixelMixture"
    found = {"image": image, "length": image["height"] * image["width"] * image["channels"], **d.some(0.3, labels=d.number(1, 4))}
    way = d.part("input", ("Pixels",) if pixels else ("ChannelValues",))
    return {**found, "input": way, **({"features": d.channels} if way["kind"] in ("Pixels", "Features") else {"vocab": d.vocab})}


def inputs(d: Drawing, fields: Fields, purpose: str, encoder: bool) -> Fields:
    """What a spec reads: tokens, facts or vectors, extra vectors before them, and perhaps what an encoder makes of a source."""
    head = fields["head"]["kind"]
    if encoder:
        return {"head": {"kind": "NoHead"}, **d.some(0.3, vocab=d.vocab), **d.some(0.15, extra=d.number(1, 2))}
    free = head in ("Classify", "Tag", "NoHead", "PolicyValue")
    found: Fields = {"features": d.number(1, 4)} if free and d.chance(0.3) else {"vocab": d.vocab}
    if d.chance(0.2):
        found["input"] = d.part(
            "input", ("Features", "Observations") if "features" in found else ("Facts", "Tokens") if free else ("Tokens",)
        )
    if not d.causal and d.chance(0.2):
        found["extra"] = d.number(1, 3)
    if purpose == "pair" or (purpose == "any" and d.chance(0.2)):
        decoder = d.layers
        d.layers = d.number(1, 2)
        found["encoder"] = spec(d, d.one("whole", "whole", "recurrent"), encoder=True)
        d.layers = decoder
        if "Aligned" in str(fields["attention"]) and d.chance(0.9):  # which begins with an encoder's final states
            found["encoder"].update(residual={"kind": "Bare"}, depth={"kind": "Stacked", "layers": d.number(1, 2)})
    return found


def parts_of(fields: Any, slot: str = "") -> Iterator[tuple[str, str]]:
    """The (slot, kind) of every part in the fields of a spec, nested ones included."""
    if isinstance(fields, dict):
        if "kind" in fields and slot:
            yield slot, fields["kind"]
        for name, value in fields.items():
            yield from parts_of(value, name if name in PARTS else slot if "kind" in fields else "")
    elif isinstance(fields, list):
        for value in fields:
            yield from parts_of(value, slot)
