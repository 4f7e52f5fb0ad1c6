"""The figures by name: what each shows, its equations, and the member that it is drawn from. Needs nothing but Python, for TAB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A figure that has a name."""

    shows: str
    """What is seen, in a sentence."""
    equations: tuple[str, ...]
    """Their numbers in EQUATIONS.md."""
    code: str
    """The module of this folder and the class in it that draws."""
    member: str = ""
    """The member that it is drawn from; nothing where it needs none, or several."""
    options: Mapping[str, Any] = {}
    """The member's options, unless given."""
    verb: str = ""
    """The verb that shows the same of a run, or with more options."""


FIGURES: dict[str, Entry] = {
    "multi-head": Entry(
        "One multi-head attention sublayer, from its input to its output, with the sizes of its matrices.",
        ("E1", "E2", "E3"), "multi_head.MultiHead", "decoder",
    ),
    "architecture": Entry(
        "A whole model: embeddings, the blocks of encoder and decoder with their residual connections, and the head.",
        ("E3", "E7", "E9", "E11", "E16", "E18"), "stacks.Architecture", "transformer", verb="formers show member transformer",
    ),
    "sinusoid": Entry(
        "Sinusoidal positions: a row for each position, a column for each dimension.",
        ("E7",), "sinusoid.Sinusoid", verb="formers show positions",
    ),
    "auxiliary-losses": Entry(
        "Which position of which layer predicts which tokens under auxiliary losses, and how the layers' weights end during training.",
        ("E31", "E32", "E33", "E34", "E35"), "auxiliary.AuxiliaryFigure", "character-transformer", {"layers": 6},
    ),
    "act-graph": Entry(
        "A recurrent network with adaptive computation time, unrolled: the steps of each input, their halting probabilities and weights.",
        ("E40", "E41", "E42", "E45", "E46"), "pondering.ActGraph", "act-rnn", {"dim": 16, "steps": 5, "halt_bias": -0.5},
        "formers show ponder RUN --text TEXT",
    ),
    "segments": Entry(
        "Which tokens a token sees through the layers when a text is read in segments, without recurrence and with it.",
        ("E50", "E52"), "segments.Segments", "transformer-xl", {"layers": 3, "length": 4, "memory": 4},
    ),
    "two-heads": Entry(
        "Two heads with spans of different lengths: how much each looks at the tokens before one token.",
        ("E60", "E61"), "spans.TwoHeads", "adaptive-span", {"dim": 32, "heads": 2, "layers": 1, "length": 48, "span": 32, "ramp": 6},
        "formers show spans RUN",
    ),
    "soft-mask": Entry(
        "The soft mask m_z(x) of adaptive attention spans: 1 up to the span z, then a ramp of R places to 0.",
        ("E61",), "spans.SoftMask",
    ),
    "image-local": Entry(
        "What one pixel sees under 1-D and under 2-D local attention, on the grid of the image.",
        ("E70", "E71", "E72", "E73"), "images.ImageLocal", "image-transformer", {"height": 12, "width": 12},
        "formers show pattern image-transformer",
    ),
    "factorized": Entry(
        "Strided and fixed attention: what one pixel sees on the grid of the image, and the matrix of all pairs.",
        ("E80", "E81", "E82", "E83"), "images.Factorized", "sparse-transformer", {"height": 6, "width": 6},
        "formers show pattern sparse-transformer",
    ),
    "lsh": Entry(
        "LSH attention in four steps: hash the tokens into buckets, sort them by bucket, cut them into chunks, attend within these.",
        ("E90", "E92", "E93", "E94"), "lsh.LSHFigure", "reformer",
        {
            "dim": 32, "heads": 2, "layers": 1, "length": 32, "position": "sinusoidal", "buckets": 4, "rounds": 1, "chunk": 4,
            "reach": "chunk",
        },
        "formers show buckets reformer --text TEXT",
    ),
    "universal-steps": Entry(
        "The steps of a Universal Transformer over its positions: the same block at every step, until a position halts.",
        ("E14", "E41", "E100"), "pondering.UniversalSteps", "universal-transformer",
        {"dim": 16, "heads": 2, "steps": 5, "act": "graves", "length": 16, "halt_bias": -1.0}, "formers show ponder RUN --text TEXT",
    ),
    "blocks": Entry(
        "Blocks side by side: Transformer-XL, its norms reordered (TrXL-I), and with gates (GTrXL).",
        ("E11", "E110", "E111", "E116", "E117", "E118"), "stacks.BlockColumns", verb="formers show member gtrxl",
    ),
}  # fmt: skip
