"""What a pixel sees on an image is what the pattern allows."""

from __future__ import annotations

from pathlib import Path

from formers.core import Raster
from formers.inspect import draw_pattern, pattern_facts
from formers.inspect.draw.pattern_images import SHOWN, draw_on_image, save_on_image
from formers.inspect.measure.pattern_images import ImageGrid, default_pixel, image_grid, on_image_facts, pattern_or_member, pixel_marks
from formers.patterns import Blocks, LocalGrid, OrderedGrid, Pattern, Strided
from helpers import refused, sweep

GRID = LocalGrid(height=6, width=8, query=(2, 3), memory=(1, 2))
CASES: list[tuple[Pattern, ImageGrid]] = [
    (GRID, ImageGrid(OrderedGrid(grid=GRID).raster, row_major=True)),
    (OrderedGrid(grid=GRID, channels=3), ImageGrid(OrderedGrid(grid=GRID, channels=3).raster)),
    (Blocks(query=15, memory=9), ImageGrid(Raster(height=6, width=8, channels=3))),
    (Strided(stride=8), ImageGrid(Raster(height=6, width=8))),
]


def test_the_published_example_is_drawn() -> None:
    marks = pixel_marks(GRID, CASES[0][1], (3, 4))
    assert marks == [
        "........",
        ".+++++++",
        ".++###  ",
        ".++#Q   ",
        "        ",
        "        ",
    ]
    assert pixel_marks(OrderedGrid(grid=GRID), image_grid(OrderedGrid(grid=GRID)) or CASES[0][1], (3, 4)) == marks


def test_one_dimension_goes_row_by_row() -> None:
    assert pixel_marks(Blocks(query=5, memory=3), ImageGrid(Raster(height=3, width=4)), (1, 3)) == ["..++", "+##Q", "    "]


@sweep(("pattern", "grid"), CASES)
def test_marks_are_what_the_pattern_allows(pattern: Pattern, grid: ImageGrid) -> None:
    raster, mask = grid.raster, pattern.mask(grid.length)[0]
    for pixel in ((0, 0), (3, 4), (5, 7)):
        marks, query = pixel_marks(pattern, grid, pixel), grid.position(pixel)
        seen = set()
        for key in mask[query].nonzero().flatten().tolist():
            seen.add((key // raster.width, key % raster.width) if grid.row_major else raster.cell(key)[:2])
        for row in range(raster.height):
            for column in range(raster.width):
                mark = marks[row][column]
                assert (mark == "Q") == ((row, column) == pixel)
                assert (mark in "#+Q") == ((row, column) in seen)
                earlier = grid.place()[row, column] < grid.place()[pixel]
                assert (mark in "#+.") == bool(earlier)


@sweep(("pattern", "grid"), CASES)
def test_drawings_have_both(pattern: Pattern, grid: ImageGrid) -> None:
    text = draw_on_image(pattern, grid)
    assert text.startswith(draw_pattern(pattern, grid.length))
    assert max(map(len, text.splitlines())) <= 80
    pixel = default_pixel(pattern, grid)
    marks = pixel_marks(pattern, grid)
    assert marks[pixel[0]][pixel[1]] == "Q"
    below = text.split(" row ↓  column →\n")[1].splitlines()[1 : 1 + grid.raster.height]
    assert ["".join(line[3:].ljust(16)[::2]) for line in below] == ["".join(SHOWN[mark] for mark in row) for row in marks]
    assert draw_on_image(pattern, grid, encoding="ascii").isascii()
    facts = on_image_facts(pattern, grid)
    assert facts["seen"] == [marks]
    assert facts["pixel"] == list(pixel)
    assert facts["mask"] == pattern_facts(pattern, grid.length)["mask"]


def test_pictures_are_written(tmp_path: Path) -> None:
    for number, (pattern, grid) in enumerate(CASES):
        assert save_on_image(pattern, tmp_path / f"{number}.png", grid).read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "0.png").read_bytes()
    assert save_on_image(*CASES[0][:1], tmp_path / "0.png", CASES[0][1], (0, 0)).read_bytes() != first


def test_members_and_sizes_give_the_image() -> None:
    pattern, grid = pattern_or_member("image-transformer", {"layout": "2d", "height": 6, "width": 8, "query_block": [2, 3]})
    assert isinstance(pattern, OrderedGrid)
    assert grid is not None
    assert grid.raster.block == (2, 3)
    pattern, grid = pattern_or_member("image-transformer", {"height": 4, "width": 4, "levels": 17})
    assert isinstance(pattern, Blocks)
    assert grid == ImageGrid(Raster(height=4, width=4))
    assert pattern_or_member("blocks", {"query": 4, "memory": 4})[1] is None
    assert pattern_or_member("blocks", {"query": 4, "memory": 4}, (4, 4, 1))[1] == ImageGrid(Raster(height=4, width=4))
    assert pattern_or_member("decoder", {})[1] is None
    with refused("blocs", "blocks"):
        pattern_or_member("blocs", {})
    with refused("4x4x1", "its own image"):
        pattern_or_member("image-transformer", {}, (4, 4, 1))


def test_mistakes_are_one_sentence() -> None:
    with refused("pixel 6,0", "5,7"):
        pixel_marks(GRID, CASES[0][1], (6, 0))
    wide = LocalGrid(height=2, width=100, query=(2, 3), memory=(1, 2))
    grid = image_grid(wide)
    assert grid is not None
    assert "--out" in draw_on_image(wide, grid, length=20)
