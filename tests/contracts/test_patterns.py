"""A pattern is its predicate: mask, trimming and shortcuts follow from `allows`."""

from __future__ import annotations

import itertools

import torch

from contracts.specimens import BLOCK, PATTERNS, patterns
from formers.attention.request import Request
from formers.core import Range, StridedPositions
from formers.patterns import Causal, Full, Local, Pattern
from formers.patterns.structure import uniform_block
from helpers import refused, sweep

LENGTH = 2 * BLOCK + 1
HEADS, LAYERS = 2, 3
SWEPT = sweep("pattern", patterns())
TIGHT = [Local(window=1), Local(window=3), Local(window=3, include_self=False), Local(window=2, causal=False)]


def truth(pattern: Pattern, queries: range, keys: range, head: int = 0, layer: int = 0) -> torch.Tensor:
    """The mask by a double loop over Python integers, in a row that ends with them."""
    here = pattern.at(layer).of(max(queries.stop, keys.stop))
    return torch.tensor([[bool(here.allows(i, j, head)) for j in keys] for i in queries])


def seen_by_any(pattern: Pattern, queries: int, keys: int) -> torch.Tensor:
    """Whether a query sees a key in any head of any layer (queries, keys), by a double loop over Python integers."""
    each = [truth(pattern, range(queries), range(keys), head, layer) for head in range(HEADS) for layer in range(LAYERS)]
    return torch.stack(each).any(dim=0)


def keeps(seen: torch.Tensor, t: int) -> set[int]:
    """The positions before t that a query at t or later still sees."""
    return set(seen[t:, :t].any(dim=0).nonzero().flatten().tolist())


@SWEPT
def test_mask_is_the_predicate_on_integers(pattern: Pattern) -> None:
    for layer, length in itertools.product(range(LAYERS), (1, 2, BLOCK, LENGTH)):
        mask = pattern.mask(length, heads=HEADS, layer=layer)
        assert mask.dtype == torch.bool
        assert mask.shape == (HEADS, length, length)
        for head in range(HEADS):
            assert torch.equal(mask[head], truth(pattern, range(length), range(length), head, layer))


@SWEPT
def test_heads_are_equal_unless_declared(pattern: Pattern) -> None:
    if not pattern.by_head:
        mask = pattern.mask(LENGTH, heads=HEADS)
        assert torch.equal(mask[0], mask[1])


@SWEPT
def test_a_layers_pattern_is_a_pattern_of_its_own(pattern: Pattern) -> None:
    for layer in range(LAYERS):
        here = pattern.at(layer)
        assert isinstance(here, Pattern)
        assert here.at(layer) == here
        assert torch.equal(here.mask(LENGTH, layer=layer), pattern.mask(LENGTH, layer=layer))


@SWEPT
def test_positions_of_a_uniform_block_are_alike(pattern: Pattern) -> None:
    for layer in range(LAYERS):
        block = uniform_block(pattern.at(layer))
        first = torch.arange(LENGTH) // block * block
        mask = pattern.mask(LENGTH, HEADS, layer)
        assert torch.equal(mask, mask[:, first][:, :, first])


@SWEPT
def test_who_needs_no_length_is_not_asked_for_it(pattern: Pattern) -> None:
    for length in (1, BLOCK, LENGTH):
        here = pattern.at(0)
        bound = here.of(length)
        assert not bound.by_length
        assert bound is here if not here.by_length else bound != here
        some = here.of(torch.tensor([[[length]]]))
        i = torch.arange(length)
        assert torch.equal(
            torch.as_tensor(some.allows(i[:, None], i, 1)).expand(1, length, length)[0], truth(pattern, range(length), range(length), 1)
        )


@SWEPT
def test_is_causal_agrees_with_the_mask(pattern: Pattern) -> None:
    sees_future = any(pattern.mask(LENGTH, HEADS, layer).triu(1).any() for layer in range(LAYERS))
    assert pattern.is_causal != sees_future


@SWEPT
def test_what_will_be_seen_is_kept(pattern: Pattern) -> None:
    seen = seen_by_any(pattern, 3 * LENGTH, LENGTH)
    for t in range(LENGTH):
        missed = keeps(seen, t) - set(pattern.cached(t).tensor().tolist())
        assert not missed, f"at t={t} these keys are forgotten and still seen"


@SWEPT
def test_what_is_kept_and_what_is_read_is_known_as_integers(pattern: Pattern) -> None:
    for t, layer in itertools.product(range(3 * LENGTH), range(LAYERS)):
        here = pattern.at(layer)
        kept = here.cached(t)
        assert kept.stop == t
        read = here.reads(t)
        if read is not None:
            seen = {j for j in range(t + 1) for head in range(HEADS) if here.allows(t, j, head)}
            assert seen <= set(read.tensor().tolist()) <= {*kept.tensor().tolist(), t}
            assert here.is_causal


@sweep("pattern", [p for kind in ("Strided", "Column", "Fixed", "Summary") for p in PATTERNS[kind]])
def test_factorised_patterns_know_exactly_what_is_kept_and_read(pattern: Pattern) -> None:
    seen = seen_by_any(pattern, 5 * LENGTH, 3 * LENGTH)
    for t in range(3 * LENGTH):
        assert keeps(seen, t) == set(pattern.cached(t).tensor().tolist())
        if not pattern.by_head:
            read = pattern.reads(t)
            assert {j for j in range(t + 1) if pattern.allows(t, j)} == set(read.tensor().tolist())
            request = Request(pattern, Range(t, 1), read, HEADS, 1.0)
            assert request.open, "what is read needs no mask"


@SWEPT
def test_strided_keys_are_covered_only_where_all_are_open(pattern: Pattern) -> None:
    here = pattern.at(0)
    for start, width, period, count in itertools.product(range(9), (1, 2, 3), (4, 5, 8), (1, 3)):
        stop = start + period * (count - 1) + width
        for queries in (Range(stop + i - 1, n) for i in range(6) for n in (1, 2)):
            if here.covers(queries, StridedPositions(start, width, period, count, Range(stop, 0))):
                teeth = StridedPositions(start, width, period, count, Range(stop, 0)).tensor().tolist()
                bound = here.of(max(stop, queries.stop))
                allowed = [bound.allows(i, j, head) for i in range(queries.start, queries.stop) for j in teeth for head in range(HEADS)]
                assert all(allowed), (queries, start, width, period, count)


@sweep("pattern", TIGHT)
def test_a_window_keeps_no_more_than_will_be_seen(pattern: Local) -> None:
    seen = truth(pattern, range(3 * LENGTH), range(LENGTH))
    for t in range(LENGTH):
        assert keeps(seen, t) == set(pattern.cached(t).tensor().tolist())
        assert pattern.oldest(t) == next((j for j in range(LENGTH) if seen[t:, j].any()), LENGTH)


@SWEPT
def test_nothing_before_the_oldest_is_seen_and_the_oldest_only_grows(pattern: Pattern) -> None:
    seen = seen_by_any(pattern, 3 * LENGTH, LENGTH)
    for t in range(LENGTH):
        oldest = pattern.oldest(t)
        assert isinstance(oldest, int)
        assert 0 <= oldest <= t
        assert oldest <= pattern.oldest(t + 1)
        assert all(position >= oldest for position in keeps(seen, t))


@SWEPT
def test_nobody_looks_further_back_than_the_reach(pattern: Pattern) -> None:
    reach = pattern.reach
    back = [t - pattern.oldest(t) for t in range(3 * LENGTH)]
    assert reach is None or reach == max(back), "the oldest key that is kept is as far back as anybody may look"
    assert reach is not None or back[-1] > back[LENGTH], "without a reach more and more is kept"


def rectangles() -> list[tuple[Range, Range]]:
    ranges = [Range(start, length) for start in range(6) for length in (1, 2, 3, 4)]
    return list(itertools.product(ranges, ranges))


@SWEPT
def test_covers_only_what_is_all_open(pattern: Pattern) -> None:
    for queries, keys in rectangles():
        if pattern.at(0).covers(queries, keys):
            here = (range(queries.start, queries.stop), range(keys.start, keys.stop))
            assert all(truth(pattern, *here, head).all() for head in range(HEADS)), (queries, keys)


@sweep("pattern", [Full(), Causal(), *TIGHT])
def test_the_plain_patterns_know_all_that_is_open(pattern: Pattern) -> None:
    for queries, keys in rectangles():
        open_ = truth(pattern, range(queries.start, queries.stop), range(keys.start, keys.stop)).all().item()
        assert pattern.covers(queries, keys) == open_, (queries, keys)


@SWEPT
def test_union_and_intersection_are_elementwise(pattern: Pattern) -> None:
    for other, layer in itertools.product((Full(), Causal(), Local(window=3, causal=False)), range(LAYERS)):
        first, second = pattern.mask(LENGTH, HEADS, layer), other.mask(LENGTH, HEADS, layer)
        assert torch.equal((pattern | other).mask(LENGTH, HEADS, layer), first | second)
        assert torch.equal((pattern & other).mask(LENGTH, HEADS, layer), first & second)


def test_an_empty_mask_is_refused() -> None:
    with refused("length=0"):
        Full().mask(0)
    with refused("heads=0"):
        Full().mask(3, heads=0)
