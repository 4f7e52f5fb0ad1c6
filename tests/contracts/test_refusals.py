"""Every refusal in the table has a spec that triggers it, before a weight is allocated, with one sentence."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Spec
from formers.attention import LSH, ByLayer, DotProduct, LowRank, SharedQK
from formers.core import Raster, Sizes
from formers.depth import Adaptive, Shared, Stacked
from formers.feedforward import Dense, SeparableConv
from formers.heads import AdaptiveSoftmax, Auxiliary, Classify, LanguageModel, MaskedLM, NoHead, Tag
from formers.inputs import ChannelValues, Facts, Features, Observations, Pixels
from formers.memory import Memory, Recurrence
from formers.model.check import REFUSALS, Refusal, check
from formers.patterns import Alternate, BigBird, Causal, Fixed, Full, Local, LocalGrid, OrderedGrid, PerHead, Strided
from formers.position import Axial, Coordinate, Grid, ImagePosition, NoPosition, PerLayer
from formers.recurrent import Aligned, Pondering, Recurrent, Window
from formers.residual import PreNorm, Reversible
from formers.score import DynamicSpan, Relative, Score, Span
from helpers import refused, sweep

PLAIN = formers.spec("decoder", vocab=10, dim=16, heads=2, layers=1)
PAIR = formers.spec("transformer", vocab=10, dim=16, heads=2, layers=1)
PAST = formers.spec("transformer-xl", vocab=10, dim=16, heads=2, layers=1)
HASHED = formers.spec("reformer", vocab=10, dim=16, heads=2, layers=2, length=32, chunk=8)
TURNS = formers.spec("reformer", vocab=10, dim=16, heads=2, layers=2, length=32, chunk=8, attention=("local", "lsh"))
WRITER = formers.spec("seq2seq", vocab=10, dim=16)
RNN = formers.spec("rnn", vocab=10, dim=16, layers=1)
IMAGE = formers.spec("image-transformer", levels=10, dim=16, heads=2, layers=1)
PIXELS = formers.spec("image-transformer", levels=10, head="mixture", dim=16, heads=2, layers=1)
SIDES = formers.spec("word-window", vocab=10, dim=16, layers=2, causal=False)
LOW = formers.spec("linformer", vocab=10, dim=16, heads=2, layers=1, length=8, rank=4)


def but(spec: Spec, **changes: object) -> Spec:
    return spec.model_copy(update=changes)


# One spec for every refusal of the table, and what its sentence must name.
REFUSED: list[tuple[Spec, str]] = [
    (but(PLAIN, heads=3), "heads=3"),
    (but(WRITER, encoder=None), "Aligned attends to a source"),
    (but(WRITER, depth=Stacked(layers=2)), "Stacked(layers=2)"),
    (but(WRITER, attention=ByLayer(Aligned(), DotProduct())), "with only Aligned"),
    (but(WRITER, depth=Adaptive(layers=1)), "Adaptive(layers=1)"),
    (but(WRITER, encoder=but(WRITER.encoder, depth=Adaptive(layers=2))), "slowest row of a batch"),
    (but(WRITER, residual=Reversible()), "which Reversible frees"),
    (but(WRITER, encoder=but(WRITER.encoder, residual=Reversible())), "which Reversible frees"),
    (but(WRITER, attention=Aligned(alignment="none"), encoder=PAIR.encoder), "no recurrent layer"),
    (but(WRITER, attention=Aligned(alignment="dot"), encoder=but(WRITER.encoder, vocab=10, dim=8)), "width 8"),
    (but(WRITER, score=Relative()), "Aligned does not compare tokens"),
    (but(WRITER, pattern=Local(window=3)), "does not support the pattern Local"),
    (but(WRITER, memory=Recurrence(length=8)), "pairs"),
    (but(PLAIN, features=4), "features=4"),
    (but(PLAIN, vocab=None, head=Classify(classes=2)), "give vocab"),
    (but(PLAIN, vocab=None, features=4, input=Observations(images=((2, 3, 1),)), head=Tag(classes=2)), "features=4"),
    (but(PLAIN, vocab=None, features=4, input=Features()), "features=4"),
    (but(PLAIN, head=AdaptiveSoftmax(cutoffs=(4, 10))), "cutoffs=[4, 10]"),
    (but(PLAIN, head=AdaptiveSoftmax(cutoffs=(4, 6), division=8)), "division=8"),
    (but(PLAIN, vocab=None, features=4, input=Features(), head=AdaptiveSoftmax(cutoffs=(4,))), "features=4"),
    (but(PLAIN, pattern=Full()), "Full"),
    (but(PLAIN, pattern=PerHead(Causal(), Causal(), Causal())), "3 heads"),
    (but(PLAIN, pattern=Alternate(Causal(), PerHead(Causal()) | Causal())), "1 heads"),
    (but(PLAIN, extra=2), "extra=2"),
    (but(PLAIN, input=ChannelValues()), "a tied LanguageModel head shares the table of Tokens"),
    (but(IMAGE, vocab=None, features=1, input=Pixels()), "predicts vocab levels"),
    (but(IMAGE, image=None), "give image"),
    (but(IMAGE, input=ChannelValues(shifted=False)), "which the input"),
    (but(PIXELS, features=2), "features=2"),
    (but(IMAGE, length=63), "has 64 positions, but length=63"),
    (but(IMAGE, input=ChannelValues(channels=3)), "different channels"),
    (but(IMAGE, position=ImagePosition(raster=Raster(height=4, width=16))), "another order"),
    (but(IMAGE, pattern=OrderedGrid(grid=LocalGrid(height=8, width=8, query=(4, 4), memory=(1, 1)))), "another order"),
    (but(IMAGE, position=NoPosition(), pattern=Causal(), memory=Recurrence(length=3, start="zeros")), "begins at position 0"),
    (but(PLAIN, pattern=Causal() & BigBird(block=2)), "length of the row"),
    (but(PLAIN, position=Grid(width=5, height=2)), "10 positions"),
    (but(PLAIN, position=Axial(shape=(15, 17))), "255, fewer than length=256: give shape=(16, 16)"),
    (but(PLAIN, position=Axial(dims=(6, 9))), "15 wide, but dim=16: give dims=(8, 8)"),
    (but(PLAIN, position=Axial(), dim=1, heads=1), "dim=1"),
    (but(PLAIN, vocab=None, features=4, input=Facts(words=3), pattern=Full(), head=Classify(classes=2)), "Facts takes token ids"),
    (but(PLAIN, input=Features()), "Features takes vectors"),
    (but(PLAIN, input=Facts(words=3)), "a LanguageModel head predicts one token per position"),
    (but(PLAIN, input=Facts(words=3), head=AdaptiveSoftmax(cutoffs=(4,))), "fact=3"),
    (but(PLAIN, input=Facts(words=3), pattern=Full(), head=MaskedLM()), "a MaskedLM head"),
    (but(PAIR, encoder=but(PAIR.encoder, input=Facts(words=3))), "an encoder-decoder takes tokens"),
    (but(PAIR, encoder=but(PAIR.encoder, encoder=PAIR.encoder)), "two stacks"),
    (but(PAIR, encoder=but(PAIR.encoder, head=Classify(classes=2))), "NoHead"),
    (but(PAIR, head=Classify(classes=2)), "Classify"),
    (but(PAIR, head=Tag(classes=2)), "Tag"),
    (but(PAIR, head=MaskedLM()), "MaskedLM"),
    (but(PAIR, encoder=but(PAIR.encoder, dim=8)), "dim=8"),
    (but(PAIR, encoder=but(PAIR.encoder, heads=3)), "heads=3"),
    (but(PLAIN, attention=LowRank(rank=4)), "over the future"),
    (but(PAIR, attention=LowRank(rank=4)), "over the future"),
    (but(LOW, pattern=Causal()), "linformer cannot be causal"),
    (but(LOW, pattern=Local(window=3, causal=False)), "Local"),
    (but(PAIR, attention=LowRank(rank=4), pattern=Full(), head=NoHead()), "cross-attention"),
    (but(LOW, memory=Memory.model_construct()), "NoMemory"),
    (but(LOW, score=Score.model_construct()), "NoScore"),
    (but(LOW, attention=LowRank(rank=9)), "rank=9"),
    (but(LOW, extra=2), "extra=0"),
    (but(LOW, attention=LowRank(rank=4, projection="conv"), value_dim=5), "sharing=headwise"),
    (but(LOW, attention=LowRank(rank=4, projection="conv", sharing="key-value"), value_dim=5), "width 5"),
    (but(PAIR, encoder=but(PAIR.encoder, attention=LowRank(rank=1000))), "rank=1000"),
    (but(PLAIN, memory=Recurrence(length=8)), "Sinusoidal"),
    (but(PAIR, memory=Recurrence(length=8)), "pairs"),
    (but(PAST, head=Classify(classes=2)), "whole rows"),
    (but(PAST, pattern=Fixed(stride=8, summary=1)), "Fixed"),
    (but(PAST, pattern=Strided(stride=8), memory=Recurrence(length=8, start="zeros")), "start=zeros"),
    (but(PAST, score=Span(span=9), memory=Recurrence(length=8)), "span=9"),
    (but(PLAIN, residual=Reversible(), position=PerLayer()), "PerLayer"),
    (but(PLAIN, residual=Reversible(), head=Auxiliary()), "Auxiliary"),
    (but(PLAIN, residual=Reversible(), depth=Adaptive(layers=2)), "averages the states of all steps"),
    (but(PAIR, encoder=but(PAIR.encoder, residual=Reversible(), depth=Adaptive(layers=2))), "which Reversible frees"),
    (but(PLAIN, depth=Adaptive(layers=2), head=Auxiliary()), "stops early"),
    (but(PLAIN, depth=Adaptive(layers=2), score=Span(span=9, penalty=0.1)), "span_penalty=0.1"),
    (but(PLAIN, depth=Adaptive(layers=2), score=DynamicSpan(span=9, penalty=0.1)), "span_penalty=0.1"),
    (but(PLAIN, residual=Reversible(ends="concat")), "tied=False"),
    (but(PLAIN, residual=Reversible(ends="concat"), head=AdaptiveSoftmax(cutoffs=(4,), division=2, tied=False)), "32 wide"),
    (but(PAIR, encoder=but(PAIR.encoder, residual=Reversible(), position=PerLayer())), "PerLayer"),
    (but(PLAIN, score=DynamicSpan(span=9), pattern=Full(), head=MaskedLM()), "DynamicSpan"),
    (but(HASHED, pattern=Local(window=3)), "LSH attention determines the keys"),
    (but(RNN, score=Relative()), "Recurrent does not compare tokens"),
    (but(RNN, pattern=Local(window=3)), "the pattern Causal."),
    (but(RNN, attention=Window(window=2), pattern=Local(window=3)), "the pattern Causal or Full."),
    (but(PAIR, attention=Window(window=2)), "Window has no cross-attention"),
    (but(SIDES, pattern=Alternate(Causal(), Full())), "Window sees both sides"),
    (but(PAIR, encoder=but(PAIR.encoder, pattern=Causal(), position=NoPosition(), memory=Recurrence(length=8))), "pairs"),
    (but(RNN, memory=Recurrence(length=8)), "use Carry"),
    (but(RNN, attention=ByLayer(Recurrent(), DotProduct())), "the cache of DotProduct attention"),
    (but(LOW, dim=15, heads=1, attention=Recurrent(direction="both")), "half of dim=15"),
    (but(RNN, attention=Pondering(steps=2), residual=Reversible()), "Pondering halts"),
    (but(RNN, attention=Pondering(steps=2), depth=Adaptive(layers=2)), "use one of them"),
    (but(HASHED, pattern=TURNS.pattern), "the pattern Blocks"),
    (but(TURNS, pattern=Alternate(Causal(), Local(window=3))), "DotProduct"),
    (but(HASHED, attention=SharedQK(), pattern=Local(window=3)), "SharedQK attention"),
    (but(HASHED, score=Relative()), "Relative is a term"),
    (but(TURNS, score=Span(span=9)), "Span is a term"),
    (but(HASHED, memory=Recurrence(length=8), position=NoPosition()), "NoMemory and a longer row"),
    (but(PAIR, attention=LSH(chunk=8)), "LSH attention has no cross-attention"),
    (but(PAIR, attention=ByLayer(DotProduct(), SharedQK())), "SharedQK attention has no cross-attention"),
    (but(HASHED, pattern=Full(), head=MaskedLM(), extra=2), "extra=0"),
    (but(HASHED, attention=LSH(chunk=33)), "chunk=33 is longer than the row of length=32"),
    (but(TURNS, attention=ByLayer(DotProduct(), LSH(chunk=64))), "chunk=64"),
    (but(PAIR, encoder=but(PAIR.encoder, attention=LSH(chunk=999))), "chunk=999"),
    (but(TURNS, depth=Shared(layers=2)), "one shared block"),
    (but(TURNS, depth=Adaptive(layers=2)), "one shared block"),
    (but(LOW, attention=ByLayer(LowRank(rank=4), DotProduct())), "LowRank attention shares"),
    (but(PLAIN, position=Coordinate(place="none", offset=3)), "offset=3 shifts positions"),
    (but(PLAIN, pattern=Full(), head=NoHead(), extra=2, feedforward=SeparableConv(hidden=8)), "does not support extra=2 vectors"),
    (but(PAST, position=Coordinate()), "Coordinate positions were never trained"),
    (but(PLAIN, residual=Reversible(), position=Coordinate()), "Coordinate"),
]
ALLOWED = [
    but(WRITER, attention=Aligned(alignment="general"), encoder=but(WRITER.encoder, vocab=10, dim=8)),
    but(WRITER, encoder=PAIR.encoder),
    but(WRITER, residual=PreNorm(), feedforward=Dense(hidden=8)),
    PLAIN,
    PAIR,
    but(PLAIN, heads=3, head_dim=5),
    but(PLAIN, head=AdaptiveSoftmax(cutoffs=(4, 9), division=4)),
    but(PAIR, head=AdaptiveSoftmax(cutoffs=(4,))),
    but(PLAIN, position=Grid(width=5)),
    but(PLAIN, position=Grid(width=4, height=2, channels=4), length=32),
    but(PLAIN, position=Axial()),
    but(PLAIN, position=Axial(shape=(2, 200), dims=(1, 15))),
    but(PLAIN, pattern=Full(), head=MaskedLM()),
    but(PLAIN, pattern=Full(), head=NoHead()),
    but(PLAIN, pattern=Full(), head=NoHead(), extra=2),
    but(PLAIN, pattern=Causal() & BigBird(block=2, global_blocks=1, random_blocks=0)),
    but(PLAIN, vocab=None, features=4, input=Features(), pattern=Full(), head=Classify(classes=2)),
    but(PLAIN, input=Facts(words=3), pattern=Full(), head=Classify(classes=2)),
    but(PLAIN, input=Facts(words=3), head=NoHead()),
    but(PAIR, encoder=but(PAIR.encoder, dim=8, vocab=7)),
    LOW,
    but(LOW, attention=LowRank(rank=8)),
    but(LOW, attention=LowRank(rank=4, projection="conv", sharing="headwise"), value_dim=5),
    but(LOW, attention=LowRank(rank=4, projection="mean"), value_dim=5),
    but(PAIR, encoder=but(PAIR.encoder, attention=LowRank(rank=4))),
    but(PLAIN, depth=Adaptive(layers=2)),
    but(PLAIN, depth=Adaptive(layers=2), score=DynamicSpan(span=9)),
    but(PLAIN, depth=Adaptive(layers=2), head=Auxiliary(intermediate="none")),
    but(PLAIN, residual=Reversible()),
    but(PLAIN, residual=Reversible(), head=Auxiliary(intermediate="none")),
    but(PLAIN, residual=Reversible(ends="concat"), head=LanguageModel(tied=False)),
    but(PLAIN, residual=Reversible(ends="concat"), head=Auxiliary(intermediate="none", tied=False)),
    but(PLAIN, residual=Reversible(ends="concat"), head=AdaptiveSoftmax(cutoffs=(4,), division=2, tied=False, tied_projections="none")),
    but(PAIR, encoder=but(PAIR.encoder, residual=Reversible(ends="concat"))),
    PAST,
    but(PAST, score=Span(span=9), memory=Recurrence(length=9)),
    but(PLAIN, score=Span(span=9)),
    HASHED,
    TURNS,
    but(HASHED, attention=LSH(chunk=32)),
    but(HASHED, depth=Shared(layers=2)),
    but(PAIR, encoder=but(PAIR.encoder, attention=LSH(chunk=8))),
    but(PLAIN, position=Coordinate(step="learned", offset=3)),
    but(PAST, position=Coordinate(place="none"), feedforward=SeparableConv(hidden=8)),
    but(PLAIN, residual=Reversible(), feedforward=SeparableConv(hidden=8)),
]


def first_met(spec: Spec) -> Refusal | None:
    return next((r for r in REFUSALS if r.when(spec)), None)


@sweep("refusal", REFUSALS)
def test_every_refusal_is_met_by_a_spec_above(refusal: Refusal) -> None:
    met = [spec for spec, _ in REFUSED if first_met(spec) is refusal]
    assert met, "a refusal in formers/model/check has no spec that meets it first: add one to REFUSED in this file."


@sweep(("spec", "word"), REFUSED)
def test_refused_in_one_sentence_before_a_weight_is_allocated(spec: Spec, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise AssertionError("a weight was allocated")

    monkeypatch.setattr(torch.nn.Module, "register_parameter", allocate)
    for refuse in (check, formers.build):
        with refused(word):
            refuse(spec)


@sweep("spec", ALLOWED)
def test_what_works_is_not_refused(spec: Spec) -> None:
    assert first_met(spec) is None
    formers.build(spec)
    assert isinstance(spec.sizes, Sizes)


def test_a_language_model_over_masked_tokens_is_no_language_model() -> None:
    assert issubclass(MaskedLM, LanguageModel)
    check(but(PLAIN, pattern=Full(), head=MaskedLM()))
