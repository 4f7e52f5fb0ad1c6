"""Axial positions: the row vector concatenated with the column vector, for any length that fits the grid."""

from __future__ import annotations

import math

import torch

import formers
from formers.core import ExplicitPositions, Range, Sizes
from formers.evaluation.protocol import Protocol
from formers.inspect import draw_positions, run_table
from formers.position import Axial
from formers.position.axial import near_square
from helpers import close, gradients, refused, sweep

SIZES = Sizes(dim=8, heads=1, head_dim=8, value_dim=8, length=24, depth_steps=1, dropout=0.0, attention_dropout=0.0, spread=0.5)
TINY = dict(vocab=11, dim=8, heads=2, layers=1, length=24)


def test_a_token_is_given_its_row_and_then_its_column():
    axial = Axial(shape=(4, 7), dims=(3, 5)).build(SIZES).double()
    found = axial(torch.zeros(1, 28, 8, dtype=torch.float64), Range(0, 28), 0)[0]
    for i in range(28):
        close(found[i], torch.cat([axial.row[i // 7], axial.column[i % 7]]))


def test_wherever_a_range_begins_and_ends_it_is_a_part_of_the_whole():
    axial = Axial(shape=(4, 7), dims=(3, 5)).build(SIZES).double()
    whole = axial(torch.zeros(1, 28, 8, dtype=torch.float64), Range(0, 28), 0)
    for start in range(28):
        for length in range(1, 29 - start):
            x = torch.randn(2, length, 8, dtype=torch.float64)
            close(axial(x, Range(start, length), 0), x + whole[:, start : start + length])


def test_places_one_by_one_are_as_a_range_and_empty_ones_do_no_harm():
    axial, x = Axial().build(SIZES), torch.randn(2, 9, 8)
    where = ExplicitPositions(torch.stack([torch.arange(3, 12), torch.tensor([20, 21, *[-1] * 7])]), 22)
    found = axial(x, where, 0)
    close(found[0], axial(x[:1], Range(3, 9), 0)[0])
    close(found[1, :2], axial(x[1:, :2], Range(20, 2), 0)[0])


def test_both_ways_to_look_them_up_have_the_same_gradient():
    axial = Axial(shape=(4, 7), dims=(3, 5)).build(SIZES).double()
    x = torch.zeros(1, 18, 8, dtype=torch.float64)
    one, other = (gradients(axial(x, at, 0), axial.parameters()) for at in (Range(5, 18), ExplicitPositions(torch.arange(5, 23)[None], 23)))
    for slope, wanted in zip(one, other, strict=True):
        close(slope, wanted)


def test_the_length_decides_the_shape():
    known = {1: (1, 1), 2: (1, 2), 12: (3, 4), 32: (4, 8), 256: (16, 16), 12_288: (96, 128), 65_536: (256, 256)}
    assert {length: near_square(length) for length in known} == known
    for length in range(1, 3000):
        rows, columns = near_square(length)
        assert rows <= columns
        assert 0 <= rows * columns - length < math.isqrt(length) + 1
        assert columns <= 4 * rows
    axial = Axial().build(SIZES)
    assert (axial.row.shape, axial.column.shape) == ((4, 4), (6, 4))
    odd = Axial().build(Sizes(**{**SIZES.__dict__, "dim": 9}))
    assert (odd.row.shape[1], odd.column.shape[1]) == (4, 5)


def test_vectors_are_of_the_size_of_a_token():
    sizes = Sizes(**{**SIZES.__dict__, "dim": 512, "length": 4096})
    added = Axial(dims=(100, 412)).build(sizes)(torch.zeros(1, 4096, 512), Range(0, 4096), 0)
    assert abs(added.std().item() / 0.5 - 1) < 0.1


@sweep("training", [True, False])
def test_any_length_that_fits_is_read_and_more_is_refused(training):
    model = formers.build(formers.spec("decoder", **TINY).replace(position=Axial(shape=(5, 6)))).train(training)
    for n in (1, 5, 6, 7, 24, 29, 30):
        model(torch.zeros(2, n, dtype=torch.long), targets=torch.zeros(2, n, dtype=torch.long)).loss.backward()
    with refused("31 tokens", "5 x 6 = 30", "shape=(4, 8)"):
        model(torch.zeros(1, 31, dtype=torch.long))


def test_judging_may_read_as_far_as_the_grid():
    spec = formers.spec("decoder", **TINY).replace(position=Axial(shape=(5, 6)))
    assert Protocol(kind="sliding", attention_length=30).resolved_for(spec).attention_length == 30
    with refused("attention_length=31", "length=30"):
        Protocol(kind="sliding", attention_length=31).resolved_for(spec)


def test_what_does_not_fit_is_refused_before_it_is_built():
    spec = formers.spec("decoder", **TINY)
    with refused("shape=(4, 5)", "20", "length=24", "shape=(4, 6)"):
        formers.build(spec.replace(position=Axial(shape=(4, 5))))
    with refused("dims=(3, 4)", "7 wide", "dim=8", "dims=(4, 4)"):
        formers.build(spec.replace(position=Axial(dims=(3, 4))))
    with refused("shape"):
        Axial(shape=(0, 5))


def test_every_recipe_with_a_choice_of_positions_takes_the_word():
    for member, options in (("encoder", {}), ("linformer", {"rank": 4}), ("transformer", {}), ("bigbird", {})):
        assert formers.create(member, **TINY, position="axial", **options).spec.position == Axial()


def test_a_run_shows_its_grid(tmp_path):
    model = formers.create("decoder", **TINY, position="axial")
    model.save_pretrained(tmp_path)
    table = run_table(tmp_path)
    row, column = (model.get_parameter(f"stack.position.{name}") for name in ("row", "column"))
    wanted = torch.stack([torch.cat([row[i // 6], column[i % 6]]) for i in range(24)])
    assert torch.equal(table.values, wanted.double())
    assert "Axial" in table.caption
    assert draw_positions(table, colour=False).plain
