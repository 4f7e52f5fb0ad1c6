"""The drawn positions are those that a model adds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.text import Text

import formers
from formers.inspect import draw_positions, run_table, save_positions, sinusoid_table
from formers.inspect.draw.positions import LETTERS, SHADES
from formers.position import sinusoid
from helpers import refused, sweep


def red_less_blue(text: Text, console: Console) -> list[list[float]]:
    """Of every cell of a coloured drawing, upper row then lower row, how much more red than blue it has, in -1 ... 1."""
    table: list[list[float]] = []
    for line in console.render_lines(text, pad=False):
        cells = [s for s in line if s.text == "▀"]
        if cells:
            for colour in ("color", "bgcolor"):
                triplets = [getattr(s.style, colour).triplet for s in cells]
                table.append([(t.red - t.blue) / 255 for t in triplets])
    return table


def test_colours_follow_the_values() -> None:
    console = Console(width=80, color_system="truecolor", force_terminal=True)
    shown = torch.tensor(red_less_blue(draw_positions(sinusoid_table(8, 12)), console))
    values = sinusoid(torch.arange(8), 12).float()
    assert shown.shape == values.shape
    assert torch.corrcoef(torch.stack([shown.flatten(), values.flatten()]))[0, 1] > 0.98
    clear = values.abs() > 0.05
    assert torch.equal(shown[clear] > 0, values[clear] > 0)


@sweep(("encoding", "marks"), [("utf-8", SHADES), ("cp1252", LETTERS)])
def test_shades_follow_the_values(encoding: str, marks: str) -> None:
    drawing = draw_positions(sinusoid_table(10, 16), encoding=encoding, colour=False).plain
    assert encoding == "utf-8" or drawing.isascii()
    rows = [line[3:].ljust(16) for line in drawing.splitlines()[2:12]]
    level = torch.tensor([[marks.index(mark) for mark in row] for row in rows])
    values = sinusoid(torch.arange(10), 16)
    middle = (level.double() + 0.5) / len(marks) * 2 - 1
    assert (middle - values).abs().max() <= 1 / len(marks) + 1e-9


def test_what_does_not_fit_is_skipped_and_said() -> None:
    drawing = draw_positions(sinusoid_table(4, 200), columns=60, colour=False).plain
    assert max(map(len, drawing.splitlines())) <= 60
    assert "One dimension in 5" in drawing
    assert "length 4, dim 200" in drawing


def test_pictures_are_written(tmp_path: Path) -> None:
    png, svg = (save_positions(sinusoid_table(40, 30), tmp_path / name) for name in ("s.png", "s.svg"))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 5000
    assert "<svg" in svg.read_text()
    assert svg.stat().st_size > 5000


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with refused("length=0"):
        sinusoid_table(0)
    with refused("dim=5000", "4096"):
        sinusoid_table(8, 5000)
    with refused("s.gif", ".png or .svg"):
        save_positions(sinusoid_table(), tmp_path / "s.gif")


def test_a_run_shows_the_table_it_learned(tmp_path: Path) -> None:
    model = formers.create("decoder", vocab=11, dim=8, heads=2, layers=1, position="learned", length=12)
    model.save_pretrained(tmp_path)
    table = run_table(tmp_path)
    learned = model.get_parameter("stack.position.table")
    assert torch.equal(table.values, learned.double())
    assert table.largest == pytest.approx(learned.abs().max().item())
    assert "Learned" in table.caption
    assert "12 of the 12" in table.caption
    drawing = draw_positions(table, colour=False).plain
    assert f"Blank is {-table.largest:.3g}" in drawing
    assert torch.equal(run_table(tmp_path, 5).values, learned[:5].double())
    with refused("13 tokens", "length=12"):
        run_table(tmp_path, 13)


def test_a_run_shows_the_sinusoid_of_its_width(tmp_path: Path) -> None:
    formers.create("transformer", vocab=11, dim=8, heads=2, layers=1, length=100).save_pretrained(tmp_path)
    table = run_table(tmp_path)
    torch.testing.assert_close(table.values, sinusoid(torch.arange(64), 8), atol=1e-6, rtol=0.0)
    assert "decoder" in table.caption
    formers.create("decoder", vocab=11, dim=8, heads=2, layers=1, position="none").save_pretrained(tmp_path / "none")
    with refused("NoPosition", "nothing to draw"):
        run_table(tmp_path / "none")
