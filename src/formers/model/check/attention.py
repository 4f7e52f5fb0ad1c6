"""What cannot work of attentions, recurrent layers and the patterns of both."""

from __future__ import annotations

from formers.attention import LSH, LowRank, SharedQK
from formers.depth import Adaptive
from formers.memory import Carry, NoMemory, Recurrence
from formers.model.check.refusal import Refusal, has, name_of, patterns_of
from formers.model.spec import Spec
from formers.patterns import Causal, Full
from formers.recurrent import Aligned, Recurrent, Window
from formers.residual import Reversible
from formers.score import NoScore

SHARED = (LSH, SharedQK)
"""Attentions whose keys are their queries."""

ATTENTION: tuple[Refusal, ...] = (
    Refusal(
        lambda s: any(pattern.is_causal for pattern in patterns_of(s, LowRank)),
        lambda s: (
            f"{s.name or 'LowRank attention'} cannot be causal: it projects over the future, because each of its keys is made of the whole "
            "row; use DotProduct attention, or LowRank in an encoder."
        ),
    ),
    Refusal(
        lambda s: any(not isinstance(pattern, Full) for pattern in patterns_of(s, LowRank)),
        lambda s: (
            f"{name_of(p for p in patterns_of(s, LowRank) if not isinstance(p, Full))} says which tokens are seen, "
            "and the keys of LowRank attention are mixtures of tokens: give it the pattern Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, LowRank) and s.extra > 0,
        lambda s: f"LowRank attention projects the tokens of a row alone, and has no place for extra={s.extra} vectors: use extra=0.",
    ),
    Refusal(
        lambda s: has(s, LowRank) and s.encoder is not None,
        lambda s: "LowRank attention has no cross-attention: give the decoder DotProduct; its encoder may have LowRank.",
    ),
    Refusal(
        lambda s: has(s, LowRank) and not isinstance(s.score, NoScore),
        lambda s: (
            f"{type(s.score).__name__} is a term for pairs of tokens, and LowRank attention has mixtures of them as keys: give it NoScore."
        ),
    ),
    Refusal(
        lambda s: any(isinstance(kind, LowRank) and kind.rank > s.length for kind in s.attention.kinds),
        lambda s: (
            f"rank={max(kind.rank for kind in s.attention.kinds if isinstance(kind, LowRank))} is more than length={s.length}, "
            f"and a projection makes keys fewer: choose a rank of at most {s.length}, or a larger length."
        ),
    ),
    Refusal(
        lambda s: not all(isinstance(pattern, (Causal, Full)) for pattern in patterns_of(s, *SHARED)),
        lambda s: (
            f"{_shared(s)} attention finds the keys of a query by itself, and the pattern "
            f"{name_of(p for p in patterns_of(s, *SHARED) if not isinstance(p, (Causal, Full)))} says which: "
            "give such layers the pattern Causal or Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and not isinstance(s.score, NoScore),
        lambda s: (
            f"{type(s.score).__name__} is a term for pairs at a distance, and {_shared(s)} attention sorts tokens by what they are: "
            "give it NoScore, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and not isinstance(s.memory, NoMemory),
        lambda s: (
            f"{type(s.memory).__name__} keeps hidden states for queries and keys of their own, and {_shared(s)} attention has one vector "
            "for both, which is hashed anew in every step: use NoMemory and a longer row, or DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and s.encoder is not None,
        lambda s: f"{_shared(s)} attention has no cross-attention: give the decoder DotProduct; its encoder may have {_shared(s)}.",
    ),
    Refusal(
        lambda s: has(s, *SHARED) and s.extra > 0,
        lambda s: f"{_shared(s)} attention shows nobody to all, and extra={s.extra} vectors are there to be seen: use extra=0.",
    ),
    Refusal(
        lambda s: any(isinstance(kind, LSH) and kind.chunk > s.length for kind in s.attention.kinds),
        lambda s: (
            f"chunk={max(kind.chunk for kind in s.attention.kinds if isinstance(kind, LSH))} is longer than the row of length={s.length}: "
            f"choose a chunk of at most {s.length}, or a larger length."
        ),
    ),
    Refusal(
        lambda s: len(s.attention.kinds) > 1 and s.depth.shared,
        lambda s: f"one shared block cannot have {len(s.attention.kinds)} kinds of attention in turn: use Stacked, or one kind.",
    ),
    Refusal(
        lambda s: len(s.attention.kinds) > 1 and has(s, LowRank),
        lambda s: "LowRank attention shares its projections over all layers and cannot take turns with others: use it alone.",
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is None,
        lambda s: (
            f"{_reader(s)} writes what it reads in a source, and there is no encoder to give one: "
            "give the spec an encoder, or use Recurrent."
        ),
    ),
    Refusal(
        lambda s: _reads(s) and (s.depth.steps > 1 or len(s.attention.kinds) > 1 or isinstance(s.depth, Adaptive)),
        lambda s: (
            f"{_reader(s)} holds all layers of a decoder in one block, and {type(s.depth).__name__}(layers={s.depth.steps}) has others "
            f"around it: use Stacked(layers=1) and {_reader(s)} alone, with as many layers of its own as you like."
        ),
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is not None and any(isinstance(side.residual, Reversible) for side in (s, s.encoder)),
        lambda s: (
            f"{_reader(s)} begins with the encoder's final states, which Reversible frees: use another residual in both stacks, as Bare."
        ),
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is not None and bool(s.encoder.final_widths) and isinstance(s.encoder.depth, Adaptive),
        lambda s: (
            f"{_reader(s)} begins with the final states of the encoder's recurrent layers, and Adaptive depth takes as many steps as the "
            "slowest row of a batch: give the encoder a fixed number of steps, as Stacked."
        ),
    ),
    Refusal(
        lambda s: _aligns(s, "none") and s.encoder is not None and not s.encoder.final_widths,
        lambda s: (
            "alignment=none knows a source by the encoder's final states alone, and this encoder has no recurrent layer: "
            "give it Recurrent layers, or use another alignment."
        ),
    ),
    Refusal(
        lambda s: _aligns(s, "dot") and s.encoder is not None and s.encoder.width != s.dim,
        lambda s: (
            f"alignment=dot multiplies states of dim={s.dim} by encoder outputs of width {s.sizes.source}: "
            "make them equal, or use alignment=general, which has a matrix between them."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and not isinstance(s.score, NoScore),
        lambda s: f"{type(s.score).__name__} is a term for pairs of tokens, and {_carrier(s)} compares none: give it NoScore.",
    ),
    Refusal(
        lambda s: any(not isinstance(pattern, attention.allowed_patterns) for attention, pattern in s.layers),
        lambda s: (
            "{} decides by itself which tokens a token learns of, and the pattern {} says otherwise: give it the pattern {}.".format(
                *_contradicted(s)
            )
        ),
    ),
    Refusal(
        lambda s: not s.looks_back and any(pattern.is_causal for pattern in patterns_of(s, Window)),
        lambda s: (
            "Window looks to both sides in every layer of a stack of which one layer looks ahead, and the pattern of another is Causal: "
            "give all layers the pattern Causal, or all of them Full."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and not _reads(s) and s.encoder is not None,
        lambda s: (
            f"{_carrier(s)} has no cross-attention to read its encoder by: use Aligned, as seq2seq does, or DotProduct; "
            f"the encoder may have {_carrier(s)}."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and isinstance(s.memory, Recurrence),
        lambda s: (
            f"Recurrence keeps the hidden states of tokens for attention, and {_carrier(s)} has a state of its own: "
            "use Carry, which carries it from segment to segment, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.memory, Carry) and not all(kind.carries for kind in s.attention.kinds),
        lambda s: (
            f"Carry is for states of fixed size, and what {_keeper(s)} attention keeps of the past grows with it: "
            "use Recurrence, which has an end, or recurrent layers alone."
        ),
    ),
    Refusal(
        lambda s: s.dim % 2 == 1 and any(isinstance(kind, Recurrent) and kind.direction == "both" for kind in s.attention.kinds),
        lambda s: (
            f"direction=both gives half of dim={s.dim} to each direction: choose an even dim, or read forward alone "
            "(direction=forward, of seq2seq bidirectional=false)."
        ),
    ),
    Refusal(
        lambda s: _one_convolution(s) is not None and s.sizes.head_dim != s.sizes.value_dim,
        lambda s: (
            f"one convolution cannot serve keys of width {s.sizes.head_dim} and values of width {s.sizes.value_dim}: "
            f"leave value_dim out, or use sharing=headwise instead of {_one_convolution(s)}."
        ),
    ),
)


def _aligns(spec: Spec, alignment: str) -> bool:
    """Whether a decoder looks at its source by an alignment."""
    return any(isinstance(kind, Aligned) and kind.alignment == alignment for kind in spec.attention.kinds)


def _contradicted(spec: Spec) -> tuple[str, str, str]:
    """An attention that cannot have the pattern of its layer, that pattern, and the patterns that it can have, in words."""
    attention, pattern = next(layer for layer in spec.layers if not isinstance(layer[1], layer[0].allowed_patterns))
    return type(attention).__name__, type(pattern).__name__, " or ".join(way.__name__ for way in attention.allowed_patterns)


def _one_convolution(spec: Spec) -> str | None:
    """How LowRank attention shares one convolution between keys and values; None where it does not."""
    shared = (kind.sharing for kind in spec.attention.kinds if isinstance(kind, LowRank) and kind.projection == "conv")
    return next((sharing for sharing in shared if sharing in ("key-value", "layerwise")), None)


def _shared(spec: Spec) -> str:
    """The name of the attention that has queries as keys."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if isinstance(kind, SHARED))


def _reads(spec: Spec) -> bool:
    """Whether the attention reads a source by itself."""
    return any(kind.reads_source for kind in spec.attention.kinds)


def _reader(spec: Spec) -> str:
    """The name of the attention that does."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if kind.reads_source)


def _carries(spec: Spec) -> bool:
    """Whether a layer has a state of fixed size instead of keys and values."""
    return any(kind.carries for kind in spec.attention.kinds)


def _carrier(spec: Spec) -> str:
    """The name of what stands there instead of attention."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if kind.carries)


def _keeper(spec: Spec) -> str:
    """The name of the attention that keeps tokens."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if not kind.carries)
