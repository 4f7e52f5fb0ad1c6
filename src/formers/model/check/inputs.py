"""Combinations of inputs, heads, images, positions, extra vectors, encoders and memories that cannot work."""

from __future__ import annotations

from collections.abc import Iterator

from formers.core import Raster
from formers.feedforward import SeparableConv
from formers.heads import AdaptiveSoftmax, Classify, LanguageModel, MaskedLM, NoHead, PixelCategorical, PixelHead, PixelMixture, Tag
from formers.inputs import ChannelValues, Facts, Observations, Pixels, Tokens
from formers.memory import NoMemory
from formers.model.check.refusal import Refusal, name_of, not_causal
from formers.model.spec import Spec
from formers.patterns import OrderedGrid, Pattern
from formers.position import Axial, Coordinate, Grid, ImagePosition
from formers.position.axial import near_square

INPUTS: tuple[Refusal, ...] = (
    Refusal(
        lambda s: s.head_dim is None and s.dim % s.heads != 0,
        lambda s: (f"dim={s.dim} cannot be split into heads={s.heads}: choose a dim that is a multiple of it, or give head_dim."),
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
        lambda s: f"the input {type(s.input).__name__} takes vectors, but vocab={s.vocab} is for tokens: give features, or use Tokens.",
    ),
    Refusal(
        lambda s: isinstance(s.input, Observations) and s.features is not None and s.input.pixels > s.features,
        lambda s: f"{s.input!r} has more floats than features={s.features}: give features for the vector and all images.",
    ),
    Refusal(
        lambda s: not s.input.vectors and s.vocab is None,
        lambda s: f"the input {type(s.input).__name__} takes token ids, but features={s.features} are floats: give vocab, or use Features.",
    ),
    Refusal(
        lambda s: s.fact is not None and (s.head.generates or isinstance(s.head, MaskedLM)),
        lambda s: (
            f"a {type(s.head).__name__} head predicts one token per position, but with fact={s.fact} a position is a sentence of several: "
            "use the Classify head (classes=...), or omit fact."
        ),
    ),
    Refusal(
        lambda s: s.encoder is not None and s.encoder.fact is not None,
        lambda s: (
            f"fact={_facts(s)} is for models that classify stories, but an encoder-decoder takes tokens: "
            "use a member with classes, or omit fact."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, (LanguageModel, AdaptiveSoftmax)) and s.vocab is None,
        lambda s: f"a {type(s.head).__name__} head predicts tokens, but features={s.features} are not tokens: give vocab, Classify or Tag.",
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelCategorical) and s.vocab is None,
        lambda s: f"a PixelCategorical head predicts vocab levels, but features={s.features} has none: give vocab, or use PixelMixture.",
    ),
    Refusal(
        lambda s: s.head.uses_embedding and not isinstance(s.input, Tokens | Facts),
        lambda s: (
            f"a tied {type(s.head).__name__} head shares the table of Tokens, but the input {type(s.input).__name__} has none: "
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
            f"a {type(s.head).__name__} head predicts the cell at each position, which the input {s.input!r} would reveal: "
            "use ChannelValues or Pixels with shifted=True."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, PixelMixture) and s.features != s.head.channels,
        lambda s: f"{s.head!r} predicts pixels with another number of channels than features={s.features}: give features=channels.",
    ),
    Refusal(
        lambda s: s.image is not None and s.image.cells != s.length,
        lambda s: f"{s.image!r} has {_cells(s)} positions, but length={s.length}: give length={_cells(s)}.",
    ),
    Refusal(
        lambda s: s.image is not None and isinstance(s.input, ChannelValues) and s.input.channels != s.image.channels,
        lambda s: f"{s.input!r} and {s.image!r} have different channels: give both the same.",
    ),
    Refusal(
        lambda s: s.image is not None and any(raster != s.image for raster in _rasters(s)),
        lambda s: f"positions or a pattern follow another order than image={s.image!r}: give all of them the same order.",
    ),
    Refusal(
        lambda s: _shifted(s) and s.memory.origin > 0,
        lambda s: (
            f"the input {type(s.input).__name__} begins at position 0, but a memory of zeros takes the first {s.memory.origin} positions: "
            'use Recurrence(start="empty").'
        ),
    ),
    Refusal(
        lambda s: isinstance(s.head, AdaptiveSoftmax) and s.vocab is not None and max(s.head.cutoffs, default=0) >= s.vocab,
        lambda s: (
            f"cutoffs={list(_adaptive(s).cutoffs)} leave no words after the last one with vocab={s.vocab}: "
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
        lambda s: (
            f"a language model over {not_causal(s)} would see the tokens that it predicts: use a causal pattern, or the MaskedLM head."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.position, Grid) and s.position.cells not in (None, s.length),
        lambda s: f"{_grid(s)} does not match length={s.length}: omit length, or height.",
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.position.table_length(s.length) < s.length,
        lambda s: (
            f"axial positions of shape={_axial(s).shape} are {_axial(s).table_length(s.length)}, fewer than length={s.length}: "
            f"give shape={near_square(s.length)}, omit shape, or use a smaller length."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.position.dims is not None and sum(s.position.dims) != s.dim,
        lambda s: (
            f"axial positions of dims={_axial(s).dims} are {sum(_axial(s).widths(s.dim))} wide, but dim={s.dim}: "
            f"give dims={Axial().widths(s.dim)}, or omit dims."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.position, Axial) and s.dim < 2,
        lambda s: f"axial positions split dim={s.dim} between a row and a column: give a dim of at least 2, or use position=learned.",
    ),
    Refusal(
        lambda s: isinstance(s.position, Coordinate) and s.position.place == "none" and s.position.offset > 0,
        lambda s: (
            f"offset={_coordinate(s).offset} shifts positions, but with place=none, as needed for relative scores "
            "and a memory, coordinates have none: use offset=0, or position=coordinate and no memory."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.feedforward, SeparableConv) and s.extra > 0,
        lambda s: f"SeparableConv does not support extra={s.extra} vectors, which have no neighbours: use extra=0, or Dense.",
    ),
    Refusal(
        lambda s: s.pattern.heads not in (None, s.heads),
        lambda s: f"{type(s.pattern).__name__} is for {s.pattern.heads} heads, but heads={s.heads}: give one pattern per head.",
    ),
    Refusal(
        lambda s: s.extra > 0 and s.looks_back,
        lambda s: (
            f"extra={s.extra} vectors come before the tokens and attend to all of them, but {type(s.pattern).__name__} is causal: "
            "use a pattern that is not causal, or extra=0."
        ),
    ),
    Refusal(
        lambda s: any(pattern.is_causal and pattern.by_length for _, pattern in s.layers),
        lambda s: (
            f"{name_of(p for _, p in s.layers if p.is_causal and p.by_length)} depends on the length of the row, "
            "which is unknown while a causal model generates: use Local, Strided or Fixed."
        ),
    ),
    Refusal(
        lambda s: s.encoder is not None and s.encoder.encoder is not None,
        lambda s: "an encoder cannot have an encoder: give at most two stacks.",
    ),
    Refusal(
        lambda s: s.encoder is not None and not isinstance(s.encoder.head, NoHead),
        lambda s: "an encoder's head would never be used: give the encoder NoHead.",
    ),
    Refusal(
        lambda s: s.encoder is not None and isinstance(s.head, (Classify, MaskedLM, Tag)),
        lambda s: f"the decoder of an encoder-decoder predicts tokens: give it the LanguageModel head instead of {type(s.head).__name__}.",
    ),
    Refusal(
        lambda s: (
            (not isinstance(s.memory, NoMemory) and not (s.is_causal and s.encoder is None))
            or (s.encoder is not None and not isinstance(s.encoder.memory, NoMemory))
        ),
        lambda s: (
            f"{_memory(s)} carries the past of a row to its next segment, but this model takes whole rows or pairs: "
            "use a causal pattern, a head that predicts every token and no encoder, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: not isinstance(s.memory, NoMemory) and any(pattern.gaps for _, pattern in s.layers),
        lambda s: (
            f"{type(s.memory).__name__} keeps the last tokens, but {name_of(p for _, p in s.layers if p.gaps)} needs some that are "
            "older, without those between: use Causal, Local or Strided, or NoMemory."
        ),
    ),
    Refusal(
        lambda s: not isinstance(s.memory, NoMemory) and s.position.absolute,
        lambda s: (
            f"{type(s.memory).__name__} carries the past beyond length={s.length}, where {type(s.position).__name__} positions were never "
            "trained: use NoPosition with the score Relative, which depends only on distances, or with recurrent layers."
        ),
    ),
)


def _memory(spec: Spec) -> str:
    """The name of the memory of a spec, or of its encoder."""
    sides = [spec] if spec.encoder is None else [spec, spec.encoder]
    return name_of(side.memory for side in sides if not isinstance(side.memory, NoMemory))


def _facts(spec: Spec) -> int | None:
    """The words per fact of a spec's encoder."""
    return None if spec.encoder is None else spec.encoder.fact


def _shifted(spec: Spec) -> bool:
    """Whether the input of each position is the cell before it."""
    return isinstance(spec.input, ChannelValues | Pixels) and spec.input.shifted


def _cells(spec: Spec) -> int:
    """The number of positions of the image of a spec that has one."""
    assert spec.image is not None
    return spec.image.cells


def _rasters(spec: Spec) -> list[Raster]:
    """The generation orders of positions and of the patterns of layers, if they have any."""
    found = [spec.position.raster] if isinstance(spec.position, ImagePosition) else []
    return found + [each.raster for _, pattern in spec.layers for each in _within(pattern) if isinstance(each, OrderedGrid)]


def _within(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern and those that it combines."""
    yield pattern
    for _, value in pattern:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Pattern):
                yield from _within(part)


def _adaptive(spec: Spec) -> AdaptiveSoftmax:
    """The head of a spec with an adaptive softmax."""
    assert isinstance(spec.head, AdaptiveSoftmax)
    return spec.head


def _axial(spec: Spec) -> Axial:
    """The position of a spec with axial positions."""
    assert isinstance(spec.position, Axial)
    return spec.position


def _coordinate(spec: Spec) -> Coordinate:
    """The position of a spec with coordinates."""
    assert isinstance(spec.position, Coordinate)
    return spec.position


def _grid(spec: Spec) -> str:
    """A description of the grid of a spec's positions."""
    assert isinstance(spec.position, Grid)
    grid = spec.position
    return f"a grid of height={grid.height}, width={grid.width}, channels={grid.channels} has {grid.cells} positions, which"
