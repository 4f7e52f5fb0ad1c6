"""Every combination that cannot work, in one table, refused before a weight is allocated, with the reason and the alternative.

Attentions and patterns may be wrapped, in ByLayer, Alternate, PerHead, `|` and `&`. So a refusal asks for the `kinds` of an attention, for
the parts of each layer (`Spec.layers`), or for a property that wrappers compute from their parts: never for the outermost type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from formers.attention import LSH, Attention, LowRank, SharedQK
from formers.core import FormersError, Part, Raster
from formers.depth import Adaptive
from formers.feedforward import SeparableConv
from formers.heads import AdaptiveSoftmax, Classify, LanguageModel, MaskedLM, NoHead, PixelCategorical, PixelHead, PixelMixture, Tag
from formers.inputs import ChannelValues, Facts, Observations, Pixels, Tokens
from formers.memory import Carry, NoMemory, Recurrence
from formers.model.spec import Spec
from formers.patterns import Causal, Full, Local, OrderedGrid, Pattern
from formers.position import Axial, Coordinate, Grid, ImagePosition
from formers.position.axial import near_square
from formers.recurrent import Aligned, Recurrent, Window
from formers.residual import Reversible
from formers.score import DynamicSpan, FixedSpan, NoScore, Span

SHARED = (LSH, SharedQK)
"""Attentions whose keys are their queries."""


class Refusal(NamedTuple):
    """A combination that cannot work: when it is met, and the sentence that says why and what to do."""

    when: Callable[[Spec], bool]
    says: Callable[[Spec], str]


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        lambda s: s.head_dim is None and s.dim % s.heads != 0,
        lambda s: (f"dim={s.dim} cannot be split into heads={s.heads}: choose a dim that is a multiple of it, or give head_dim yourself."),
    ),
    Refusal(
        lambda s: s.vocab is not None and s.features is not None,
        lambda s: f"vocab={s.vocab} and features={s.features} are two kinds of input: give one of them.",
    ),
    Refusal(
        lambda s: s.vocab is None and s.features is None,
        lambda s: "the model has no input: give vocab for tokens or features for vectors.",
    ),
    Refusal(
        lambda s: s.input.vectors and s.features is None,
        lambda s: f"the input {type(s.input).__name__} takes vectors, and vocab={s.vocab} counts tokens: give features, or use Tokens.",
    ),
    Refusal(
        lambda s: isinstance(s.input, Observations) and s.features is not None and s.input.pixels > s.features,
        lambda s: f"{s.input!r} holds more floats than features={s.features}: give features for the vector and all images.",
    ),
    Refusal(
        lambda s: not s.input.vectors and s.vocab is None,
        lambda s: f"the input {type(s.input).__name__} takes token ids, and features={s.features} are floats: give vocab, or use Features.",
    ),
    Refusal(
        lambda s: s.fact is not None and (s.head.generates or isinstance(s.head, MaskedLM)),
        lambda s: (
            f"a {type(s.head).__name__} head tells one token a position, and with fact={s.fact} a position is a sentence of several: "
            "use the Classify head (classes=...), or leave fact out."
        ),
    ),
    Refusal(
        lambda s: s.encoder is not None and s.encoder.fact is not None,
        lambda s: (
            f"fact={_facts(s)} is for models that classify stories, and an encoder-decoder reads tokens: "
            "use a member with classes, or leave fact out."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, (LanguageModel, AdaptiveSoftmax)) and s.vocab is None,
        lambda s: f"a {type(s.head).__name__} head predicts tokens, and features={s.features} has none: give vocab, Classify or Tag.",
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelCategorical) and s.vocab is None,
        lambda s: f"a PixelCategorical head predicts vocab levels, and features={s.features} has none: give vocab, or use PixelMixture.",
    ),
    Refusal(
        lambda s: s.head.uses_embedding and not isinstance(s.input, Tokens | Facts),
        lambda s: (
            f"a tied {type(s.head).__name__} head shares the table of Tokens, and the input {type(s.input).__name__} has no such: "
            "use tied=False."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelHead) and s.image is None,
        lambda s: f"a {type(s.head).__name__} head predicts the cells of an image: give image, the order of its cells.",
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelHead) and not _shifted(s),
        lambda s: (
            f"a {type(s.head).__name__} head predicts the cell at each position, which the input {s.input!r} would show: "
            "use ChannelValues or Pixels with shifted=True."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelMixture) and s.features != s.head.channels,
        lambda s: f"{s.head!r} predicts pixels of other channels than features={s.features}: give as many features as channels.",
    ),
    Refusal(
        lambda s: s.image is not None and s.image.cells != s.length,
        lambda s: f"{s.image!r} has {_cells(s)} positions, and length={s.length}: give length={_cells(s)}.",
    ),
    Refusal(
        lambda s: s.image is not None and isinstance(s.input, ChannelValues) and s.input.channels != s.image.channels,
        lambda s: f"{s.input!r} and {s.image!r} have different channels: give both the same.",
    ),
    Refusal(
        lambda s: s.image is not None and any(raster != s.image for raster in _rasters(s)),
        lambda s: f"positions or a pattern follow another order than image={s.image!r}: give all of them one order.",
    ),
    Refusal(
        lambda s: _shifted(s) and s.memory.origin > 0,
        lambda s: (
            f"the input {type(s.input).__name__} begins at position 0, and a memory of zeros takes the first {s.memory.origin} positions: "
            'use Recurrence(start="empty").'
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, AdaptiveSoftmax) and s.vocab is not None and max(s.head.cutoffs, default=0) >= s.vocab,
        lambda s: (
            f"cutoffs={list(_adaptive(s).cutoffs)} leave no words behind the last of them with vocab={s.vocab}: "
            f"give cutoffs below {s.vocab}, or [] for one softmax over all."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, AdaptiveSoftmax) and s.head.narrowest(s.dim) < 1,
        lambda s: (
            f"division={_adaptive(s).division} leaves the last of {len(_adaptive(s).cutoffs) + 1} clusters no width at dim={s.dim}: "
            "choose a smaller division, fewer cutoffs or a larger dim."
        ),
    ),
    Refusal(
        lambda s: s.head.generates and not s.looks_back,
        lambda s: (f"a language model over {_ahead(s)} would see the tokens it is to predict: use a causal pattern, or the MaskedLM head."),
    ),
    Refusal(
        lambda s: isinstance(s.position, Grid) and s.position.cells not in (None, s.length),
        lambda s: f"{_grid(s)} does not match length={s.length}: leave out length, or height.",
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.position.table_length(s.length) < s.length,
        lambda s: (
            f"axial positions of shape={_axial(s).shape} are {_axial(s).table_length(s.length)}, fewer than length={s.length}: "
            f"give shape={near_square(s.length)}, leave shape out, or use a smaller length."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.position.dims is not None and sum(s.position.dims) != s.dim,
        lambda s: (
            f"axial positions of dims={_axial(s).dims} are {sum(_axial(s).widths(s.dim))} wide, and dim={s.dim}: "
            f"give dims={Axial().widths(s.dim)}, or leave dims out."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.dim < 2,
        lambda s: f"axial positions share dim={s.dim} between a row and a column: give a dim of at least 2, or use position=learned.",
    ),
    Refusal(
        lambda s: isinstance(s.position, Coordinate) and s.position.place == "none" and s.position.offset > 0,
        lambda s: (
            f"offset={_coordinate(s).offset} moves positions, and coordinates tell none with place=none, as they must with relative scores "
            "and a memory: use offset=0, or position=coordinate and no memory."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.feedforward, SeparableConv) and s.extra > 0,
        lambda s: f"a convolution is over neighbours, and extra={s.extra} vectors stand beside nobody: use extra=0, or Dense.",
    ),
    Refusal(
        lambda s: s.pattern.heads not in (None, s.heads),
        lambda s: f"{type(s.pattern).__name__} is for {s.pattern.heads} heads, and heads={s.heads}: give one pattern a head.",
    ),
    Refusal(
        lambda s: s.extra > 0 and s.looks_back,
        lambda s: (
            f"extra={s.extra} vectors stand before the tokens to read them all, and {type(s.pattern).__name__} shows them none: "
            "use a pattern that is not causal, or extra=0."
        ),
    ),
    Refusal(
        lambda s: any(pattern.is_causal and pattern.by_length for _, pattern in s.layers),
        lambda s: (
            f"{_name(p for _, p in s.layers if p.is_causal and p.by_length)} depends on where a row ends, "
            "which a causal layer does not know while it reads: use Local, Strided or Fixed."
        ),
    ),
    Refusal(
        lambda s: s.encoder is not None and s.encoder.encoder is not None,
        lambda s: "an encoder cannot have an encoder of its own: give two stacks at the most.",
    ),
    Refusal(
        lambda s: s.encoder is not None and not isinstance(s.encoder.head, NoHead),
        lambda s: "an encoder's head would never be used: give the encoder NoHead.",
    ),
    Refusal(
        lambda s: s.encoder is not None and isinstance(s.head, (Classify, MaskedLM, Tag)),
        lambda s: f"the decoder of an encoder-decoder writes tokens: give it the LanguageModel head instead of {type(s.head).__name__}.",
    ),
    Refusal(
        lambda s: (
            (not isinstance(s.memory, NoMemory) and not (s.is_causal and s.encoder is None))
            or (s.encoder is not None and not isinstance(s.encoder.memory, NoMemory))
        ),
        lambda s: (
            f"{_memory(s)} carries the past of one stream to its next segment, and this model reads whole rows or pairs: "
            "use a causal pattern, a head that predicts every token and no encoder, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: not isinstance(s.memory, NoMemory) and any(pattern.gaps for _, pattern in s.layers),
        lambda s: (
            f"{type(s.memory).__name__} keeps the last tokens of a stream, and {_name(p for _, p in s.layers if p.gaps)} some that are "
            "older and not those between: use Causal, Local or Strided, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: not isinstance(s.memory, NoMemory) and s.position.absolute,
        lambda s: (
            f"{type(s.memory).__name__} carries the past beyond length={s.length}, where {type(s.position).__name__} positions were never "
            "trained: use NoPosition with the score Relative, which knows distances only, or with recurrent layers."
        ),
    ),
    Refusal(
        lambda s: any(pattern.is_causal for pattern in _patterns(s, LowRank)),
        lambda s: (
            f"{s.name or 'LowRank attention'} cannot be causal: it projects over the future, because each of its keys is made of the whole "
            "row; use DotProduct attention, or LowRank in an encoder."
        ),
    ),
    Refusal(
        lambda s: any(not isinstance(pattern, Full) for pattern in _patterns(s, LowRank)),
        lambda s: (
            f"{_name(p for p in _patterns(s, LowRank) if not isinstance(p, Full))} says which tokens are seen, "
            "and the keys of LowRank attention are mixtures of tokens: give it the pattern Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: _has(s, LowRank) and s.extra > 0,
        lambda s: f"LowRank attention projects the tokens of a row alone, and has no place for extra={s.extra} vectors: use extra=0.",
    ),
    Refusal(
        lambda s: _has(s, LowRank) and s.encoder is not None,
        lambda s: "LowRank attention has no cross-attention: give the decoder DotProduct; its encoder may have LowRank.",
    ),
    Refusal(
        lambda s: _has(s, LowRank) and not isinstance(s.score, NoScore),
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
        lambda s: not all(isinstance(pattern, (Causal, Full)) for pattern in _patterns(s, *SHARED)),
        lambda s: (
            f"{_shared(s)} attention finds the keys of a query by itself, and the pattern "
            f"{_name(p for p in _patterns(s, *SHARED) if not isinstance(p, (Causal, Full)))} says which: "
            "give such layers the pattern Causal or Full, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: _has(s, *SHARED) and not isinstance(s.score, NoScore),
        lambda s: (
            f"{type(s.score).__name__} is a term for pairs at a distance, and {_shared(s)} attention sorts tokens by what they are: "
            "give it NoScore, or use DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: _has(s, *SHARED) and not isinstance(s.memory, NoMemory),
        lambda s: (
            f"{type(s.memory).__name__} keeps hidden states for queries and keys of their own, and {_shared(s)} attention has one vector "
            "for both, which is hashed anew in every step: use NoMemory and a longer row, or DotProduct attention."
        ),
    ),
    Refusal(
        lambda s: _has(s, *SHARED) and s.encoder is not None,
        lambda s: f"{_shared(s)} attention has no cross-attention: give the decoder DotProduct; its encoder may have {_shared(s)}.",
    ),
    Refusal(
        lambda s: _has(s, *SHARED) and s.extra > 0,
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
        lambda s: len(s.attention.kinds) > 1 and _has(s, LowRank),
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
        lambda s: _reads(s) and s.encoder is not None and bool(s.encoder.finals) and isinstance(s.encoder.depth, Adaptive),
        lambda s: (
            f"{_reader(s)} begins with the final states of the encoder's recurrent layers, and Adaptive depth takes as many steps as the "
            "slowest row of a batch: give the encoder a fixed number of steps, as Stacked."
        ),
    ),
    Refusal(
        lambda s: _aligns(s, "none") and s.encoder is not None and not s.encoder.finals,
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
        lambda s: any(not isinstance(pattern, attention.ways) for attention, pattern in s.layers),
        lambda s: (
            "{} decides by itself which tokens a token learns of, and the pattern {} says otherwise: give it the pattern {}.".format(
                *_contradicted(s)
            )
        ),
    ),
    Refusal(
        lambda s: not s.looks_back and any(pattern.is_causal for pattern in _patterns(s, Window)),
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
        lambda s: isinstance(s.score, FixedSpan) and s.memory.limit is not None and s.memory.limit < s.score.span,
        lambda s: (
            f"span={_span(s).span} looks further back than memory={s.memory.limit} keeps: "
            f"give a memory of at least {_span(s).span}, or a smaller span."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.score, FixedSpan) and not s.looks_back,
        lambda s: (
            f"{type(s.score).__name__} says how far back is looked, and {_ahead(s)} looks ahead, too: use a causal pattern, or NoScore."
        ),
    ),
    # Whatever else needs the states that reversibility frees is refused here.
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and isinstance(s.depth, Adaptive),
        lambda s: (
            "Adaptive depth averages the states of all steps, which Reversible frees: use norm=pre or norm=post with it, "
            "or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and isinstance(s.score, Span | DynamicSpan) and s.score.penalty > 0,
        lambda s: (
            f"spans cost span_penalty={_penalty(s):g} at every step, and how many steps Adaptive depth takes depends on who stands in the "
            "batch: use span_penalty=0, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and _ponders(s),
        lambda s: (
            "Pondering halts within every step of Adaptive depth, which halts, too, and what the former costs would depend on who stands "
            "in the batch: use one of them, Pondering(act=none) or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of all steps, and Adaptive depth takes as few as it can: "
            "use intermediate=none or the LanguageModel head, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.position.every_step,
        lambda s: (
            f"{type(s.position).__name__} positions are added at every step, which Reversible, computing states back, would have to undo: "
            "use positions that are added once, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and _ponders(s),
        lambda s: (
            "Pondering halts where a sum reaches 1, and Reversible would ask once more with states computed back, where it may not: "
            "use norm=bare or norm=pre with it, or act=none."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of the layers in between, which Reversible frees: "
            "use intermediate=none or the LanguageModel head, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: s.head.uses_embedding and s.width != s.dim,
        lambda s: (
            f"streams that end with ends=concat are {s.width} wide, and a tied head has the embedding's dim={s.dim}: "
            "use tied=False, or ends=mean."
        ),
    ),
    Refusal(
        lambda s: _one_convolution(s) is not None and s.sizes.head_dim != s.sizes.value_dim,
        lambda s: (
            f"one convolution cannot serve keys of width {s.sizes.head_dim} and values of width {s.sizes.value_dim}: "
            f"leave value_dim out, or use sharing=headwise instead of {_one_convolution(s)}."
        ),
    ),
    Refusal(
        lambda s: s.memory.origin > 0 and not all(isinstance(s.pattern.at(t), Causal | Local) for t in range(s.depth.steps)),
        lambda s: (
            f"start=zeros moves every token behind {s.memory.origin} zeros, and {type(s.pattern).__name__} depends on where tokens are: "
            "use Causal or Local, or start=empty."
        ),
    ),
)


def _has(spec: Spec, *kinds: type[Attention]) -> bool:
    """Whether one of the attentions of a stack is of one of some kinds."""
    return any(isinstance(kind, kinds) for kind in spec.attention.kinds)


def _patterns(spec: Spec, *kinds: type[Attention]) -> list[Pattern]:
    """The patterns of the layers that have one of some kinds of attention."""
    return [pattern for attention, pattern in spec.layers if isinstance(attention, kinds)]


def _name(parts: Iterable[Part]) -> str:
    """The name of the first of some parts."""
    return next(type(part).__name__ for part in parts)


def _ahead(spec: Spec) -> str:
    """The name of a layer's pattern that is not causal."""
    return _name(pattern for _, pattern in spec.layers if not pattern.is_causal)


def _memory(spec: Spec) -> str:
    """The name of the memory of a spec, or of its encoder."""
    sides = [spec] if spec.encoder is None else [spec, spec.encoder]
    return _name(side.memory for side in sides if not isinstance(side.memory, NoMemory))


def _aligns(spec: Spec, alignment: str) -> bool:
    """Whether a decoder looks at its source by an alignment."""
    return any(isinstance(kind, Aligned) and kind.alignment == alignment for kind in spec.attention.kinds)


def _contradicted(spec: Spec) -> tuple[str, str, str]:
    """An attention that cannot have the pattern of its layer, that pattern, and the patterns that it can have, in words."""
    attention, pattern = next(layer for layer in spec.layers if not isinstance(layer[1], layer[0].ways))
    return type(attention).__name__, type(pattern).__name__, " or ".join(way.__name__ for way in attention.ways)


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


def _ponders(spec: Spec) -> bool:
    """Whether a recurrent layer decides by itself how many steps a token takes."""
    return any(kind.ponders is not None for kind in spec.attention.kinds)


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


def _facts(spec: Spec) -> int | None:
    """The words of a fact that a spec's encoder reads."""
    return None if spec.encoder is None else spec.encoder.fact


def _shifted(spec: Spec) -> bool:
    """Whether each position is given the cell before it."""
    return isinstance(spec.input, ChannelValues | Pixels) and spec.input.shifted


def _cells(spec: Spec) -> int:
    """The positions of the image of a spec that is known to have one."""
    assert spec.image is not None
    return spec.image.cells


def _rasters(spec: Spec) -> list[Raster]:
    """The orders of cells that positions and the patterns of the layers follow, where they follow one."""
    found = [spec.position.raster] if isinstance(spec.position, ImagePosition) else []
    return found + [each.raster for _, pattern in spec.layers for each in _within(pattern) if isinstance(each, OrderedGrid)]


def _within(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern and those that it is made of."""
    yield pattern
    for _, value in pattern:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Pattern):
                yield from _within(part)


def _adaptive(spec: Spec) -> AdaptiveSoftmax:
    """The head of a spec that is known to be adaptive."""
    assert isinstance(spec.head, AdaptiveSoftmax)
    return spec.head


def _span(spec: Spec) -> FixedSpan:
    """The score of a spec that is known to have spans."""
    assert isinstance(spec.score, FixedSpan)
    return spec.score


def _axial(spec: Spec) -> Axial:
    """The positions of a spec that are known to be axial."""
    assert isinstance(spec.position, Axial)
    return spec.position


def _penalty(spec: Spec) -> float:
    """What a place costs the spans of a spec that is known to have such."""
    assert isinstance(spec.score, Span | DynamicSpan)
    return spec.score.penalty


def _coordinate(spec: Spec) -> Coordinate:
    """The positions of a spec that are known to be coordinates."""
    assert isinstance(spec.position, Coordinate)
    return spec.position


def _grid(spec: Spec) -> str:
    """The grid of a spec's positions in words."""
    assert isinstance(spec.position, Grid)
    grid = spec.position
    return f"a grid of height={grid.height}, width={grid.width}, channels={grid.channels} has {grid.cells} positions, which"


def check(spec: Spec) -> None:
    """Refuses a spec that cannot work, with one sentence."""
    for refusal in REFUSALS:
        if refusal.when(spec):
            raise FormersError(refusal.says(spec))
    for _, pattern in spec.layers:
        pattern.of(spec.extra + spec.length)  # a pattern that ends before the row does says so
    if spec.encoder is not None:
        source = spec.encoder
        if source.vocab is None and source.features is None:
            if source.dim != spec.dim:
                raise FormersError(
                    f"an encoder of dim={source.dim} cannot read through its decoder's embedding of dim={spec.dim}: give it vocab."
                )
            source = source.replace(vocab=spec.vocab)
        check(source)
