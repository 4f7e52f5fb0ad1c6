"""A wrapped part is rejected where the part is rejected, and computes what the part computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import formers
from contracts.specimens import TINY, VOCAB, subject
from contracts.test_refusals import HASHED, LOW, PAIR, PAST, PLAIN, REFUSED, RNN, WRITER, but
from formers import FormersError, Spec
from formers.attention import Attention, ByLayer, DotProduct, LowRank
from formers.depth import Stacked
from formers.evaluation import Protocol
from formers.family.ablations import without_mask, without_scaling
from formers.heads import NoHead
from formers.inspect.draw.block import draw_block
from formers.memory import Recurrence
from formers.model.check import check
from formers.patterns import Alternate, BigBird, Causal, Fixed, Full, Local, Pattern, PerHead, Strided
from formers.position import NoPosition
from formers.recurrent import Aligned, Pondering, Recurrent
from helpers import close, one_sentence, refused


def same_attentions(attention: Attention) -> Iterator[Attention]:
    """Wrappings that mean what the attention itself means."""
    yield ByLayer(attention)
    if len(attention.kinds) == 1:
        yield ByLayer(ByLayer(attention))


def same_patterns(pattern: Pattern, heads: int) -> Iterator[Pattern]:
    """Wrappings that mean what the pattern itself means."""
    yield Alternate(pattern)
    yield pattern | pattern
    yield pattern & pattern
    yield Alternate(Alternate(pattern)) | pattern
    if pattern.heads in (None, heads):
        yield PerHead(*[pattern] * heads)


def wrapped(spec: Spec) -> Iterator[Spec]:
    """The spec with its attention, its pattern or both wrapped, in both stacks."""
    if spec.encoder is not None:
        yield from (but(spec, encoder=encoder) for encoder in wrapped(spec.encoder))
    attentions = list(same_attentions(spec.attention)) if len(spec.attention.kinds) == 1 else []
    patterns = list(same_patterns(spec.pattern, spec.heads))
    yield from (but(spec, attention=attention) for attention in attentions)
    yield from (but(spec, pattern=pattern) for pattern in patterns)
    yield from (but(spec, attention=attention, pattern=pattern) for attention in attentions[:1] for pattern in patterns)


def is_accepted(spec: Spec) -> bool:
    """Whether the table refuses nothing of a spec; what is not refused in one sentence is an error."""
    try:
        check(spec)
    except FormersError as error:
        one_sentence(str(error))
        return False
    return True


def test_what_is_refused_is_refused_wrapped() -> None:
    for spec, word in REFUSED:
        for other in wrapped(spec):
            assert not is_accepted(other), f"accepted, although {word!r} is refused: {other.attention!r}, {other.pattern!r}"


def test_what_is_refused_is_refused_in_one_of_two_layers() -> None:
    """Where DotProduct, or a plain pattern, would be accepted, it is the part itself that is refused: so it is in any layer."""
    found = 0
    for spec, word in REFUSED:
        if spec.pattern.at(0) != spec.pattern.at(1):
            continue  # its layers differ already
        deep = but(spec, depth=Stacked(layers=2)) if isinstance(spec.depth, Stacked) else spec
        if len(spec.attention.kinds) == 1 and is_accepted(but(spec, attention=DotProduct())):
            for parts in ((DotProduct(), spec.attention), (spec.attention, DotProduct())):
                assert not is_accepted(but(deep, attention=ByLayer(*parts))), word
                found += 1
        for plain in (Causal(), Full()):
            if is_accepted(but(spec, pattern=plain)):
                for first, second in ((plain, spec.pattern), (spec.pattern, plain)):
                    assert not is_accepted(but(deep, pattern=Alternate(first, second))), word
                    found += 1
    assert found > 60, "hardly a specimen is refused because of its attention or its pattern"


MIXED: list[tuple[Spec, str]] = [
    (but(PLAIN, attention=ByLayer(LowRank(rank=2))), "over the future"),
    (but(LOW, attention=ByLayer(LowRank(rank=99))), "rank=99"),
    (but(LOW, pattern=Alternate(Full(), Causal()), depth=Stacked(layers=2)), "over the future"),
    (but(PAIR, attention=ByLayer(LowRank(rank=2)), pattern=Full(), head=NoHead()), "no cross-attention"),
    (but(PAST, attention=ByLayer(LowRank(rank=2))), "over the future"),
    (but(WRITER, attention=ByLayer(Aligned(alignment="none")), encoder=PAIR.encoder), "no recurrent layer"),
    (but(PAST, pattern=Alternate(Causal(), Fixed(stride=4, summary=1)), depth=Stacked(layers=2)), "but Fixed needs some that are older"),
    (but(PAST, pattern=Fixed(stride=4, summary=1) & Local(window=9)), "but Intersection needs some that are older"),
    (but(PAST, pattern=Fixed(stride=4, summary=1) | Fixed(stride=16, summary=1)), "but Union needs some that are older"),
    (but(PLAIN, pattern=Alternate(Full(), Causal() & BigBird(block=2)), head=LOW.head, depth=Stacked(layers=2)), "length of the row"),
    (but(PAIR, encoder=but(PAIR.encoder, pattern=Causal(), position=NoPosition(), memory=Recurrence(length=4))), "Recurrence carries"),
]


@pytest.mark.parametrize(("spec", "word"), MIXED)
def test_layers_are_refused_one_by_one(spec: Spec, word: str) -> None:
    with refused(word):
        check(spec)


def test_a_layer_that_the_stack_does_not_have_is_not_asked() -> None:
    check(but(PAST, pattern=Alternate(Causal(), Fixed(stride=4, summary=1))))
    check(but(PLAIN, pattern=Alternate(Causal(), Full())))
    assert but(PLAIN, pattern=Alternate(Causal(), Full())).is_causal
    assert not but(PLAIN, pattern=Alternate(Causal(), Full()), depth=Stacked(layers=2)).is_causal


def test_memories_still_take_patterns_of_which_one_keeps_all() -> None:
    for pattern in (Causal() | Fixed(stride=4, summary=1), PerHead(Fixed(stride=4, summary=1), Causal())):
        check(but(PAST, pattern=pattern))


def test_patterns_for_different_numbers_of_heads_are_refused_where_they_meet() -> None:
    two, three = PerHead(Causal(), Full()), PerHead(Causal(), Full(), Causal())
    for make in (
        lambda: two | three,
        lambda: three & two,
        lambda: Alternate(Causal(), two, three),
        lambda: Alternate(Alternate(two), Causal() | three),
        lambda: PerHead(Full(), two, Causal()),
    ):
        with refused("2 heads", "3 heads"):
            make()
    assert (two | Causal()).heads == Alternate(Full(), two & two).heads == PerHead(two, two).heads == 2


ALONE = [
    formers.spec("decoder", vocab=VOCAB, **TINY),
    formers.spec("linformer", vocab=VOCAB, rank=6, **TINY),
    formers.spec("reformer", vocab=VOCAB, chunk=4, buckets=4, **TINY),
    formers.spec("transformer-xl", vocab=VOCAB, memory=5, **TINY),
    but(PAIR, encoder=but(PAIR.encoder, attention=LowRank(rank=4))),
    WRITER,
    but(RNN, attention=Pondering(steps=2)),
    but(RNN, attention=Recurrent(cell="gru")),
    HASHED,
]


@pytest.mark.parametrize("spec", ALONE, ids=lambda spec: spec.name)
def test_one_attention_by_layer_is_that_attention(spec: Spec) -> None:
    encoder = None if spec.encoder is None else but(spec.encoder, attention=ByLayer(spec.encoder.attention))
    found = []
    for one in (spec, but(spec, attention=ByLayer(ByLayer(spec.attention)), encoder=encoder)):
        torch.manual_seed(3)
        read = subject(one)
        x = read.input(7)
        out = read(x, targets=read.targets(7))
        out.loss.backward()
        seen = read.model.inspect(*([x] if read.source is None else [read.source, x]))
        slopes = {name: p.grad for name, p in read.model.named_parameters()}
        found.append((out, slopes, seen, one))
    (out, slopes, seen, _), (again, others, map_again, wrap) = found
    assert torch.equal(out.loss, again.loss)
    assert list(slopes) == list(others)
    assert all((slope is None and others[name] is None) or torch.equal(slope, others[name]) for name, slope in slopes.items())
    for name in ("attention", "cross", "encoder"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(seen, name), getattr(map_again, name), strict=True))
    assert draw_block(spec) == draw_block(wrap)
    for fact in ("ponders", "final_widths", "attention_steps", "draws", "is_causal", "sizes"):
        assert getattr(spec, fact) == getattr(wrap, fact), fact


@torch.no_grad()
def test_a_wrapped_pattern_is_the_pattern() -> None:
    for spec, pattern in ((PLAIN, Fixed(stride=3, summary=1)), (PAST, Local(window=4)), (but(PLAIN, head=LOW.head), BigBird(block=2))):
        found = []
        for one in (pattern, *same_patterns(pattern, 2)):
            torch.manual_seed(3)
            read = subject(but(spec, pattern=one))
            x, mask = read.input(9), torch.rand(3, 9) < 0.7
            found.append((read(x).logits, read(x, mask=mask).logits))
        for whole, padded in found[1:]:
            close(whole, found[0][0])
            close(padded, found[0][1])


def test_ablations_and_protocols_look_at_layers() -> None:
    spec = but(PLAIN, attention=ByLayer(DotProduct()), pattern=Alternate(Causal()))
    assert without_mask(spec).pattern == Full()
    assert without_scaling(spec).attention == DotProduct(scaled=False)
    with refused("no scaled dot-product attention"):
        without_scaling(but(PLAIN, attention=ByLayer(DotProduct(), Recurrent())))
    with refused("no causal mask"):
        without_mask(but(PLAIN, pattern=Alternate(Causal(), Local(window=3)), depth=Stacked(layers=2)))
    near = but(PAST, pattern=Alternate(Local(window=8)), memory=Recurrence(length=8))
    assert Protocol().resolved_for(near).same_length
    assert Protocol(same_length=False).resolved_for(near).spec(near).pattern == Causal()
    turns = but(PAST, pattern=Alternate(Causal(), Strided(stride=3)), depth=Stacked(layers=2))
    with refused("has Strided"):
        Protocol(same_length=True).resolved_for(turns)
