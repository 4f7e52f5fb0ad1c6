"""Positions with regular gaps, against sets of integers."""

from __future__ import annotations

import itertools
import json

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formers.core import ExplicitPositions, Range, StridedPositions
from formers.core.positions import StaticPositions, find_slices, join, strided_positions, take_slices, union
from formers.core.serialise import pack, unpack
from helpers import sweep


def members(known: StaticPositions) -> set[int]:
    """The positions as a set; they must stand in order, each once."""
    listed = known.tensor().tolist()
    assert listed == sorted(set(listed))
    assert known.length == len(listed)
    assert not listed or known.stop > listed[-1]
    return set(listed)


@st.composite
def knowns(draw: st.DrawFn, stop: int) -> StaticPositions:
    near = draw(st.integers(0, stop))
    if draw(st.booleans()):
        return Range(near, stop - near)
    period = draw(st.sampled_from([4, 6, 8]))
    return strided_positions(draw(st.integers(0, period - 1)), draw(st.integers(1, 4)), period, Range(near, stop - near))


pairs = st.integers(0, 40).flatmap(lambda stop: st.tuples(knowns(stop), knowns(stop)))


def test_a_comb_is_its_teeth_and_what_is_near() -> None:
    for start, width, period, near, more in itertools.product(range(5), range(1, 6), range(1, 6), range(18), range(3)):
        teeth = {p for first in range(start, near, period) for p in range(first, min(first + width, near))}
        found = strided_positions(start, width, period, Range(near, more))
        assert members(found) == teeth | set(range(near, near + more))
        assert isinstance(found, Range) or found.count > 0


@settings(max_examples=300)
@given(pairs)
def test_a_union_holds_both(both: tuple[StaticPositions, StaticPositions]) -> None:
    first, second = both
    found = union(first, second)
    assert members(found) >= members(first) | members(second)
    assert found == union(second, first)


def test_a_union_of_gaps_that_fit_is_exact() -> None:
    teeth, window = strided_positions(3, 1, 4, Range(19, 1)), Range(15, 5)
    assert members(union(teeth, window)) == members(teeth) | members(window)
    beside = strided_positions(2, 1, 4, Range(18, 2))
    assert members(union(teeth, beside)) == members(teeth) | members(beside)
    assert union(teeth, strided_positions(3, 1, 5, Range(19, 1))) == Range(3, 17), "different periods: all between is kept"


@settings(max_examples=300)
@given(pairs)
def test_what_is_taken_is_what_was_wanted(both: tuple[StaticPositions, StaticPositions]) -> None:
    held, wanted = both
    where = find_slices(held, wanted)
    if where is not None:
        x = held.tensor()[None, :, None]
        assert take_slices(x, where, dim=1)[0, :, 0].tolist() == wanted.tensor().tolist()
    else:
        assert held != wanted


@sweep("stride", [3, 4, 7])
def test_all_that_a_stream_forgets_can_be_taken_out(stride: int) -> None:
    """From a range, and from what is left of it some blocks later, with and without further tokens behind it."""
    for t, later, more in itertools.product(range(1, 30), range(12), range(3)):
        held = strided_positions(stride - 1, 1, stride, Range(t // stride * stride, t % stride + later))
        stop = t + later + more
        held = join(held, Range(t + later, more), batch=1)
        wanted = strided_positions(stride - 1, 1, stride, Range(stop // stride * stride, stop % stride))
        for there in (held, Range(0, stop)):
            assert find_slices(there, wanted) is not None
        x = held.tensor()[None]
        assert take_slices(x, find_slices(held, wanted), dim=1)[0].tolist() == wanted.tensor().tolist()


def test_a_slice_without_gaps_is_a_view() -> None:
    x = torch.randn(2, 9, 3)
    found = take_slices(x, find_slices(Range(4, 9), Range(6, 5)), dim=1)
    assert found.data_ptr() == x[:, 2:].data_ptr()


def test_joining_goes_on_where_it_ended() -> None:
    first = StridedPositions(3, 1, 4, 2, Range(12, 2))
    assert join(first, Range(14, 3), batch=2) == StridedPositions(3, 1, 4, 2, Range(12, 5))
    apart = join(first, Range(20, 1), batch=2)
    assert isinstance(apart, ExplicitPositions)
    assert apart.index.tolist() == [[3, 7, 12, 13, 20]] * 2
    rows = join(first, ExplicitPositions(torch.tensor([[14], [-1]]), 15), batch=2)
    assert rows.tensor().tolist() == [[3, 7, 12, 13, 14], [3, 7, 12, 13, -1]]


def test_a_comb_survives_the_way_through_a_file() -> None:
    first = StridedPositions(3, 1, 4, 2, Range(12, 2))
    assert unpack(json.loads(json.dumps(pack(first, {}))), {}) == first
