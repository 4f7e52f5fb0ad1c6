"""Combinations of attentions, recurrent layers and patterns that cannot work."""

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
            f"{s.name or 'LowRank attention'} cannot be causal: it projects over the future, because each of its keys depends on the whole "
            "row; use DotProduct attention, or LowRank in an encoder."
        ),
    ),
    Refusal(
        lambda s: any(not isinstance(pattern, Full) for pattern in patterns_of(s, LowRank)),
        lambda s: (
            f"{name_of(p for p in patterns_of(s, LowRank) if not isinstance(p, Full))} restricts which tokens are visible, "
            "but the keys of LowRank attention are mixtures of tokens: give it the pattern Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, LowRank) and s.extra > 0,
        lambda s: f"LowRank attention does not support extra={s.extra} vectors: use extra=0.",
    ),
    Refusal(
        lambda s: has(s, LowRank) and s.encoder is not None,
        lambda s: "LowRank attention has no cross-attention: give the decoder DotProduct; its encoder may have LowRank.",
    ),
    Refusal(
        lambda s: has(s, LowRank) and not isinstance(s.score, NoScore),
        lambda s: (
            f"{type(s.score).__name__} is a term for pairs of tokens, but keys of LowRank attention mix all tokens: give it NoScore."
        ),
    ),
    Refusal(
        lambda s: any(isinstance(kind, LowRank) and kind.rank > s.length for kind in s.attention.kinds),
        lambda s: (
            f"rank={max(kind.rank for kind in s.attention.kinds if isinstance(kind, LowRank))} is more than length={s.length}, "
            f"but the projection must reduce the number of keys: choose a rank of at most {s.length}, or a larger length."
        ),
    ),
    Refusal(
        lambda s: not all(isinstance(pattern, (Causal, Full)) for pattern in patterns_of(s, *SHARED)),
        lambda s: (
            f"{_shared(s)} attention determines the keys of a query itself, which contradicts the pattern "
            f"{name_of(p for p in patterns_of(s, *SHARED) if not isinstance(p, (Causal, Full)))}: "
            "give such layers the pattern Causal or Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and not isinstance(s.score, NoScore),
        lambda s: (
            f"{type(s.score).__name__} is a term by distance, but {_shared(s)} attention compares tokens by content: "
            "give it NoScore, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and not isinstance(s.memory, NoMemory),
        lambda s: (
            f"{type(s.memory).__name__} stores hidden states for separate keys, but {_shared(s)} attention has one vector for queries and "
            "keys, which is hashed anew in every step: use NoMemory and a longer row, or DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: has(s, *SHARED) and s.encoder is not None,
        lambda s: f"{_shared(s)} attention has no cross-attention: give the decoder DotProduct; its encoder may have {_shared(s)}.",
    ),
    Refusal(
        lambda s: has(s, *SHARED) and s.extra > 0,
        lambda s: f"{_shared(s)} attention does not support extra={s.extra} vectors, which all tokens must see: use extra=0.",
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
        lambda s: "LowRank attention shares its projections over all layers and cannot alternate with others: use it in all.",
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is None,
        lambda s: (f"{_reader(s)} attends to a source, but there is no encoder: give the spec an encoder, or use Recurrent."),
    ),
    Refusal(
        lambda s: _reads(s) and (s.depth.steps > 1 or len(s.attention.kinds) > 1 or isinstance(s.depth, Adaptive)),
        lambda s: (
            f"{_reader(s)} contains all layers of a decoder in one block, but {type(s.depth).__name__}(layers={s.depth.steps}) has other "
            f"blocks: use Stacked(layers=1) with only {_reader(s)}, and set its own number of layers."
        ),
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is not None and any(isinstance(side.residual, Reversible) for side in (s, s.encoder)),
        lambda s: (
            f"{_reader(s)} starts from the encoder's final states, which Reversible frees: use another residual in both, such as Bare."
        ),
    ),
    Refusal(
        lambda s: _reads(s) and s.encoder is not None and bool(s.encoder.final_widths) and isinstance(s.encoder.depth, Adaptive),
        lambda s: (
            f"{_reader(s)} starts from the final states of the encoder's recurrent layers, but Adaptive depth takes as many steps as the "
            "slowest row of a batch: give the encoder a fixed number of steps, such as Stacked."
        ),
    ),
    Refusal(
        lambda s: _aligns(s, "none") and s.encoder is not None and not s.encoder.final_widths,
        lambda s: (
            "alignment=none uses only the encoder's final states, but this encoder has no recurrent layer: "
            "give it Recurrent layers, or use another alignment."
        ),
    ),
    Refusal(
        lambda s: _aligns(s, "dot") and s.encoder is not None and s.encoder.width != s.dim,
        lambda s: (
            f"alignment=dot multiplies states of dim={s.dim} by encoder outputs of width {s.sizes.source}: "
            "make them equal, or use alignment=general."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and not isinstance(s.score, NoScore),
        lambda s: f"{type(s.score).__name__} is a term for pairs of tokens, but {_carrier(s)} does not compare tokens: give it NoScore.",
    ),
    Refusal(
        lambda s: any(not isinstance(pattern, attention.allowed_patterns) for attention, pattern in s.layers),
        lambda s: ("{} does not support the pattern {}: give it the pattern {}.".format(*_contradicted(s))),
    ),
    Refusal(
        lambda s: not s.looks_back and any(pattern.is_causal for pattern in patterns_of(s, Window)),
        lambda s: (
            "Window sees both sides in every layer if one layer is not causal, but the pattern of another is Causal: "
            "give all layers the pattern Causal, or all of them Full."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and not _reads(s) and s.encoder is not None,
        lambda s: (
            f"{_carrier(s)} has no cross-attention for its encoder: use Aligned, as seq2seq does, or DotProduct; "
            f"the encoder may have {_carrier(s)}."
        ),
    ),
    Refusal(
        lambda s: _carries(s) and isinstance(s.memory, Recurrence),
        lambda s: (
            f"Recurrence stores the hidden states of tokens for attention, but {_carrier(s)} has a recurrent state: "
            "use Carry, which carries it from segment to segment, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.memory, Carry) and not all(kind.carries for kind in s.attention.kinds),
        lambda s: (
            f"Carry is for states of fixed size, but the cache of {_keeper(s)} attention grows with the past: "
            "use Recurrence, which has a limit, or only recurrent layers."
        ),
    ),
    Refusal(
        lambda s: s.dim % 2 == 1 and any(isinstance(kind, Recurrent) and kind.direction == "both" for kind in s.attention.kinds),
        lambda s: (
            f"direction=both gives half of dim={s.dim} to each direction: choose an even dim, or use one direction "
            "(direction=forward, of seq2seq bidirectional=false)."
        ),
    ),
    Refusal(
        lambda s: _one_convolution(s) is not None and s.sizes.head_dim != s.sizes.value_dim,
        lambda s: (
            f"one convolution cannot serve keys of width {s.sizes.head_dim} and values of width {s.sizes.value_dim}: "
            f"omit value_dim, or use sharing=headwise instead of {_one_convolution(s)}."
        ),
    ),
)


def _aligns(spec: Spec, alignment: str) -> bool:
    """Whether a decoder uses an alignment."""
    return any(isinstance(kind, Aligned) and kind.alignment == alignment for kind in spec.attention.kinds)


def _contradicted(spec: Spec) -> tuple[str, str, str]:
    """An attention that does not support the pattern of its layer, that pattern, and the supported patterns, as text."""
    attention, pattern = next(layer for layer in spec.layers if not isinstance(layer[1], layer[0].allowed_patterns))
    return type(attention).__name__, type(pattern).__name__, " or ".join(way.__name__ for way in attention.allowed_patterns)


def _one_convolution(spec: Spec) -> str | None:
    """The sharing of LowRank attention with one convolution for keys and values; None otherwise."""
    shared = (kind.sharing for kind in spec.attention.kinds if isinstance(kind, LowRank) and kind.projection == "conv")
    return next((sharing for sharing in shared if sharing in ("key-value", "layerwise")), None)


def _shared(spec: Spec) -> str:
    """The name of the attention that has queries as keys."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if isinstance(kind, SHARED))


def _reads(spec: Spec) -> bool:
    """Whether the attention attends to a source itself."""
    return any(kind.reads_source for kind in spec.attention.kinds)


def _reader(spec: Spec) -> str:
    """The name of the attention that attends to a source."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if kind.reads_source)


def _carries(spec: Spec) -> bool:
    """Whether a layer has a state of fixed size instead of keys and values."""
    return any(kind.carries for kind in spec.attention.kinds)


def _carrier(spec: Spec) -> str:
    """The name of the layer type with a state of fixed size."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if kind.carries)


def _keeper(spec: Spec) -> str:
    """The name of the attention with keys and values."""
    return next(type(kind).__name__ for kind in spec.attention.kinds if not kind.carries)
