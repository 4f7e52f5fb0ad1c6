"""A drawn pattern is its mask: every mark is read back and compared."""

from __future__ import annotations

import builtins
import json
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from contracts.specimens import PATTERNS, patterns
from formers.core import Part
from formers.inspect import draw_pattern, pattern_facts, pattern_named, pattern_names, save_pattern
from formers.inspect.measure.part_text import spell
from formers.patterns import Causal, Full, Local, Pattern
from helpers import refused, sweep

SWEPT = sweep("pattern", patterns())


class Halves(Part):
    """Head 0 sees the past, the others themselves alone; from layer 1 on all see everything. No `Pattern`, so as not to be registered."""

    is_causal: ClassVar[bool] = True
    by_head: ClassVar[bool] = True
    mask = Pattern.mask
    of = Pattern.of

    def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
        return (j <= i) & ((head == 0) | (j == i))

    def at(self, layer: int) -> Part:
        return self if layer == 0 else Full()


def rows(drawing: str) -> list[str]:
    """The marks of a drawing's rows, without labels."""
    lines = [line for line in drawing.splitlines() if any(mark in line for mark in "■·█▀▄") and "key" not in line]
    width = max(len(line) - len(line.lstrip(" 0123456789")) for line in lines)
    return [line[width:] for line in lines]


def read_squares(drawing: str) -> Tensor:
    """The mask of a drawing with a row a query."""
    return torch.tensor([[mark == "■" for mark in row.split()] for row in rows(drawing)])


def read_halves(drawing: str) -> Tensor:
    """The mask of a drawing with two queries a row."""
    halves = [[[m in "▀█" for m in row], [m in "▄█" for m in row]] for row in rows(drawing)]
    return torch.tensor([line for pair in halves for line in pair])


@SWEPT
@sweep("length", [1, 2, 17, 32])
def test_squares_are_the_mask(pattern: Pattern, length: int) -> None:
    drawing = draw_pattern(pattern, length)
    assert torch.equal(read_squares(drawing), pattern.mask(length)[0])
    assert max(map(len, drawing.splitlines())) <= 80


@SWEPT
@sweep("length", [33, 64])
def test_half_blocks_are_the_mask(pattern: Pattern, length: int) -> None:
    drawing = draw_pattern(pattern, length)
    read = read_halves(drawing)
    assert torch.equal(read[:length], pattern.mask(length)[0])
    assert not read[length:].any()
    assert len(rows(drawing)) == (length + 1) // 2
    assert max(map(len, drawing.splitlines())) <= 80


def test_letters_are_the_mask_where_there_is_no_unicode() -> None:
    for length in (9, 40):
        drawing = draw_pattern(Local(window=3), length, encoding="ascii")
        assert drawing.isascii()
        lines = drawing.splitlines()[2 : 2 + length]
        read = torch.tensor([[mark == "#" for mark in line[4 if length > 9 else 3 :] if mark != " "] for line in lines])
        assert torch.equal(read, Local(window=3).mask(length)[0])


def test_a_long_pattern_is_shaded_without_hiding_or_inventing() -> None:
    lines = rows(draw_pattern(Causal(), 300, columns=80))
    each = 300 // len(lines[0]) + (300 % len(lines[0]) > 0)
    for r, line in enumerate(lines):
        for c, mark in enumerate(line):
            inside = Causal().mask(300)[0, 2 * each * r : 2 * each * (r + 1), each * c : each * (c + 1)]
            assert (mark == "█") == bool(inside.all())
            assert (mark == "·") == (not inside.any())
    assert f"{each} keys" in draw_pattern(Causal(), 300).replace("\n", "")


def test_the_ruler_stands_above_the_keys_it_names() -> None:
    head, ruler, *body = draw_pattern(Local(window=1), 24).splitlines()
    assert "query" in head
    assert "key" in head
    for label in ruler.split():
        assert body[int(label)].index("■") == ruler.index(f" {label}") + 1


def test_the_caption_states_pattern_length_and_density() -> None:
    assert draw_pattern(Local(window=4), 8).splitlines()[-1] == " Local(window=4), length 8: 40.6% of pairs allowed."
    assert "layer 2" in draw_pattern(Causal(), 8, layer=2)
    assert "all 3 heads alike" in draw_pattern(Causal(), 8, heads=3)


def test_heads_that_differ_are_drawn_one_by_one() -> None:
    drawing = draw_pattern(Halves(), 6, heads=2)
    first, second = drawing.split(" head 1: ")
    assert torch.equal(read_squares(first), Causal().mask(6)[0])
    assert torch.equal(read_squares(second), torch.eye(6, dtype=torch.bool))
    assert draw_pattern(Halves(), 6, heads=2, layer=1).count("query") == 1


def test_facts_are_the_mask_and_survive_json() -> None:
    facts = json.loads(json.dumps(pattern_facts(Halves(), 5, heads=2)))
    read = torch.tensor([[[v == "1" for v in row] for row in head] for head in facts["mask"]])
    assert torch.equal(read, Halves().mask(5, heads=2))
    assert facts["density_by_head"] == [15 / 25, 5 / 25]
    assert facts["density"] == 20 / 50


@sweep("pattern", [several[0] for several in PATTERNS.values()])
def test_every_kind_of_pattern_is_a_picture(pattern: Pattern, tmp_path: Path) -> None:
    assert_picture(save_pattern(pattern, tmp_path / "picture.svg", 17))


@pytest.mark.slow
@SWEPT
@sweep("suffix", [".png", ".svg", ".PNG"])
def test_every_pattern_is_a_picture(pattern: Pattern, suffix: str, tmp_path: Path) -> None:
    assert_picture(save_pattern(pattern, tmp_path / f"picture{suffix}", 17))


def test_a_picture_has_a_panel_for_each_head_that_differs(tmp_path: Path) -> None:
    one, many = (save_pattern(Halves(), tmp_path / f"{heads}.png", 16, heads=heads) for heads in (1, 6))
    assert png_size(many)[0] > 2 * png_size(one)[0]
    assert_picture(save_pattern(Local(window=20), tmp_path / "long.svg", 200))


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        first, second = (save_pattern(Causal(), tmp_path / f"{i}.{suffix}", 8).read_bytes() for i in range(2))
        assert first == second


def test_names_are_those_of_the_patterns_that_options_describe() -> None:
    assert {"full", "causal", "local"} <= set(pattern_names())
    assert {"union", "intersection"}.isdisjoint(pattern_names())
    for name in pattern_names():
        for pattern in PATTERNS.get("".join(word.title() for word in name.split("-")), []):
            options = {field: getattr(pattern, field) for field in type(pattern).model_fields}
            assert pattern_named(name, json.loads(json.dumps(options))) == pattern


@sweep("name", ["causal", "Causal", "CAUSAL", "caus-al", "_causal"])
def test_names_are_read_whatever_their_spelling(name: str) -> None:
    assert pattern_named(name) == Causal()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with refused("casual", "did you mean 'causal'"):
        pattern_named("casual")
    with refused("Local", "window"):
        pattern_named("local")
    with refused("windw", "did you mean 'window'"):
        pattern_named("local", {"windw": 3})
    with refused("window", "-2"):
        pattern_named("local", {"window": -2})
    with refused("length=0"):
        draw_pattern(Causal(), 0)
    with refused("heads=0"):
        draw_pattern(Causal(), 8, heads=0)
    with refused("layer=-1"):
        draw_pattern(Causal(), 8, layer=-1)
    with refused("length=100000", "4096"):
        draw_pattern(Causal(), 100000)
    with refused("causal.pdf", ".png or .svg"):
        save_pattern(Causal(), tmp_path / "causal.pdf")
    with refused("folder"):
        save_pattern(Causal(), tmp_path / "nowhere" / "causal.png")


def test_without_matplotlib_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with refused("pip install matplotlib"):
        save_pattern(Causal(), tmp_path / "causal.png", 8)


def test_parts_are_spelt_as_they_are_written() -> None:
    assert spell(Causal()) == "Causal"
    assert spell(Causal() | Local(window=3, causal=False)) == "Causal | Local(window=3, causal=False)"
    assert spell((Causal() | Full()) & Local(window=3)) == "(Causal | Full) & Local(window=3)"
    assert spell(Local(window=3), defaults=True) == "Local(window=3, causal=True, include_self=True)"


def png_size(path: Path) -> tuple[int, int]:
    """Width and height that a PNG states."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def assert_picture(path: Path) -> None:
    """Fails unless a file is a whole PNG or SVG that shows something."""
    assert path.stat().st_size > 3000
    if path.suffix.lower() == ".png":
        assert min(png_size(path)) > 300
    else:
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 1
