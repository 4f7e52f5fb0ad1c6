"""The lecture's table, measured: sequential operations and paths, and how they grow."""

from __future__ import annotations

import math

import pytest

from formers.cli.options import parse_set
from formers.family.variants import variant
from formers.inspect.draw.curves import draw_curves, save_panels
from formers.inspect.draw.interaction import interaction_panels, words_of
from formers.inspect.measure.interaction import Growth, growth, interaction, interaction_facts, readers, small_spec
from helpers import refused, sweep

LENGTHS = (16, 32, 64)


@sweep(
    ("law", "wanted"),
    [
        (lambda n: 7, "O(1)"),
        (lambda n: 3 * round(math.log2(n)) + 5, "O(log n)"),
        (lambda n: round(4 * math.sqrt(n)) + 9, "O(sqrt n)"),
        (lambda n: 6 * n + 20, "O(n)"),
        (lambda n: n - 1, "O(n)"),
        (lambda n: n // 16 + 2, "O(n/k)"),
        (lambda n: min(n // 8, 4), "O(1)"),
    ],
)
def test_growth_is_distinguished(law, wanted):
    lengths = (16, 32, 64, 128, 256)
    found = growth(lengths, [law(n) for n in lengths])
    assert found is not None
    assert found.word == wanted
    if wanted == "O(n/k)":
        assert found.each == pytest.approx(16, rel=0.01)


def test_growth_of_what_is_never_joined():
    assert growth(LENGTHS, [1, None, None]) is None


@sweep(
    ("text", "operations", "path"),
    [
        ("decoder:layers=2", "O(1)", "O(1)"),
        ("encoder:layers=2", "O(1)", "O(1)"),
        ("transformer:layers=1", "O(1)", "O(1)"),
        ("sparse-transformer:layers=2,pattern=strided", "O(1)", "O(1)"),
        ("sparse-transformer:layers=2,use=interleaved", "O(1)", "O(1)"),
        ("linformer:layers=1", "O(1)", "O(1)"),
        ("adaptive-span:layers=2", "O(1)", "O(n/k)"),
        ("transformer-xl:layers=1", "O(1)", "O(n/k)"),
        ("rnn", "O(n)", "O(n)"),
        ("seq2seq:alignment=none", "O(n)", "O(n)"),
        ("seq2seq:alignment=dot", "O(n)", "O(1)"),
        ("word-window", "O(1)", "O(n/k)"),
        ("act-rnn:steps=2", "O(n)", "O(n)"),
    ],
)
def test_the_table_of_the_lecture(text, operations, path):
    found = interaction(variant(text, parse_set), (16, 32, 64, 128) if path == "O(n/k)" else LENGTHS)
    grown = [growth(found.lengths, figures) for figures in (found.operations, found.paths)]
    assert all(isinstance(each, Growth) for each in grown)
    assert [each.word for each in grown] == [operations, path]
    facts = interaction_facts([found])[0]
    assert facts["path"] == list(found.paths)
    assert facts["operations_growth"]["order"] == operations
    assert words_of(found)[0] == text


def test_sparse_attention_joins_all_in_two():
    for pattern in ("strided", "fixed"):
        found = interaction(variant(f"sparse-transformer:layers=2,pattern={pattern}", parse_set), LENGTHS)
        assert found.paths == (2, 2, 2)


def test_all_that_read_tokens_can_be_built():
    for each in readers():
        assert small_spec(each, 16).vocab == 16


def test_members_that_agree_share_a_line(tmp_path):
    found = [interaction(variant(text, parse_set), LENGTHS) for text in ("decoder:layers=1", "decoder:layers=1,norm=post", "adaptive-span")]
    operations, path = interaction_panels(found)
    assert [curve.y for curve in path.curves] == [[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]]
    assert path.curves[1].name.replace("\n", " ") == "decoder:layers=1, decoder:layers=1,norm=post"
    assert len(operations.curves) >= 2
    rows = draw_curves(path, 60).splitlines()
    assert [rows[i].split()[0] for i in (1, 8, 16)] == ["4", "2.09", "1"]  # in logarithms the middle of 1 and 4 is 2
    assert save_panels([operations, path], tmp_path / "x.svg", "caption").stat().st_size > 1000


def test_lengths_that_show_nothing_are_refused():
    with refused("length=4", "16"):
        interaction(variant("decoder", parse_set), (4, 16, 32))
    with refused("[16, 32]", "three"):
        interaction(variant("decoder", parse_set), (16, 32))
