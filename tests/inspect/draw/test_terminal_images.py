"""Images in a terminal: colours, widths, what is not known yet, and a drawing that grows in place."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch

from formers.core import Raster
from formers.data.progress import silently
from formers.inspect.draw.images import UNKNOWN, known_pixels, to_rgb
from formers.inspect.draw.terminal_images import LiveImage, colours_of, render
from helpers import sweep

CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def read_back(text: str) -> np.ndarray:
    """The colours of half blocks with 24-bit colours, (rows, columns, 3); -1 where a lower half is empty."""
    rows: list[list[list[int]]] = []
    for line in text.split("\n"):
        above, below, style = [], [], ""
        for code, mark in re.findall(r"(\x1b\[[0-9;]*m)|(.)", line):
            if code:
                style = code
                continue
            assert mark == "▀"
            numbers = [int(n) for n in style[2:-1].split(";")]
            above.append(numbers[2:5])
            below.append(numbers[7:10] or [-1] * 3)
        rows += [above, below]
    return np.array(rows)


def test_the_environment_says_how_many_colours() -> None:
    assert colours_of({"COLORTERM": "truecolor"}) == "24bit"
    assert colours_of({"COLORTERM": "24bit", "TERM": "xterm"}) == "24bit"
    assert colours_of({"TERM": "xterm-256color"}) == "256"
    assert colours_of({"NO_COLOR": "1", "COLORTERM": "truecolor"}) == "none"
    assert colours_of({"TERM": "dumb"}) == "none"


@sweep(("height", "width"), [(33, 40), (20, 33), (8, 8), (1, 1)])
def test_half_blocks_are_the_pixels(height: int, width: int) -> None:
    image = torch.randint(256, (height, width, 3))
    read = read_back(render(image, 256, colours="24bit"))
    rgb = to_rgb(image[None], 256)[0].astype(int)
    scale = read.shape[1] // width
    assert scale == max(1, 32 // max(height, width) // 2 * 2)
    assert (read[: scale * height : scale, ::scale] == rgb).all()
    assert (read[scale * height :] == -1).all()


def test_unknown_pixels_have_a_colour_of_their_own() -> None:
    image, known = torch.randint(17, (36, 40, 1)), known_pixels(Raster(height=36, width=40, block=(8, 8)), 700)
    read = read_back(render(image, 17, known, colours="24bit"))
    assert (((read == UNKNOWN).all(axis=-1)) == ~known).all()
    marks = render(image, 17, known, colours="none").split("\n")
    assert all((mark == ".") == (not known[2 * y : 2 * y + 2, x].all()) for y, line in enumerate(marks) for x, mark in enumerate(line))


def test_256_colours_are_near() -> None:
    image = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [128, 128, 128], [95, 135, 175]]).view(1, 5, 3)
    numbers = re.findall(r"38;5;(\d+)", render(image.repeat(40, 8, 1), 256, colours="256"))
    assert [int(n) for n in numbers[:5]] == [16, 231, 196, 244, 67]


@sweep("colours", ["24bit", "256", "none"])
@sweep(("height", "width", "room"), [(8, 8, 80), (28, 28, 80), (28, 28, 20), (200, 300, 80), (5, 64, 60), (3, 3, 2)])
def test_lines_fit(colours: str, height: int, width: int, room: int) -> None:
    image = torch.randint(256, (height, width, 1))
    for lines in (None, 10):
        text = render(image, 256, width=room, height=lines, colours=colours)  # type: ignore[arg-type]
        shown = [CODE.sub("", line) for line in text.split("\n")]
        assert len({len(line) for line in shown}) == 1
        assert 1 <= len(shown[0]) <= room
        assert lines is None or len(shown) <= lines


def test_without_unicode_there_is_ascii() -> None:
    text = render(torch.randint(17, (8, 8, 1)), 17, colours="24bit", encoding="ascii")
    assert text.isascii()
    assert "\x1b" not in text
    dark, light = render(torch.zeros(4, 4, 1, dtype=torch.int64), 17, colours="none"), render(torch.full((4, 4, 1), 16), 17, colours="none")
    assert set(dark) == {" ", "\n"}
    assert set(light) == {"@", "\n"}


@sweep("channels", [1, 3])
@sweep("whole", [False, True])
def test_a_live_image_redraws_in_place(channels: int, whole: bool) -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as environment:
        environment.setenv("COLORTERM", "truecolor")
        environment.setenv("COLUMNS", "80")
        environment.setenv("LINES", "40")
        environment.delenv("NO_COLOR", raising=False)
        environment.setenv("TERM", "xterm")
        raster = Raster(height=36, width=34, channels=1 if whole else channels, block=(8, 8))
        images = torch.randint(17, (3, 36, 34, channels))
        stream = raster.to_pixels(images) if whole else raster.to_stream(images)
        screen = Terminal()
        with LiveImage((36, 34, channels), 17, raster, screen, seconds=0.0) as live:
            live.update(stream[:, :0])
            live.update(stream[:, : raster.cells // 2])
            live.update(stream, done=raster.cells)  # a tensor of all positions
        frames = screen.getvalue().split(f"\x1b[{live.lines}A\r")
    assert len(frames) == 3
    lines = frames[-1].split("\x1b[K\n")
    assert len(lines) == 18 + 1 + 1  # half blocks, progress, and the end
    both = [line.split("\x1b[0m  ") for line in lines[:18]]
    assert all(len(parts) == 2 for parts in both)  # two of the three images fit
    read = read_back("\n".join(parts[0] for parts in both))
    assert (read == to_rgb(images, 17)[0]).all()
    half = read_back("\n".join(line.split("\x1b[0m  ")[0] for line in frames[1].split("\x1b[K\n")[:18]))
    assert ((half == UNKNOWN).all(axis=-1) == ~known_pixels(raster, raster.cells // 2)).all()
    assert f"{raster.cells:,} of {raster.cells:,} positions" in lines[18]
    assert "a second" in lines[18]
    assert "s left" in frames[1]


def test_a_pipe_and_quiet_get_nothing() -> None:
    raster, stream = Raster(height=4, width=4), torch.zeros(1, 16, dtype=torch.int64)
    pipe, quiet = io.StringIO(), Terminal()
    with LiveImage((4, 4, 1), 2, raster, pipe, seconds=0.0) as live:
        live.update(stream)
    with silently(), LiveImage((4, 4, 1), 2, raster, quiet, seconds=0.0) as live:
        live.update(stream)
    assert pipe.getvalue() == quiet.getvalue() == ""


def test_a_live_image_is_drawn_ten_times_a_second() -> None:
    screen, raster = Terminal(), Raster(height=4, width=4)
    with LiveImage((4, 4, 1), 2, raster, screen, seconds=100.0) as live:
        for count in range(1, 16):
            live.update(torch.zeros(1, count, dtype=torch.int64))
        drawn = screen.getvalue().count("positions")
        live.update(torch.zeros(1, 16, dtype=torch.int64))
    assert drawn == 1
    assert screen.getvalue().count("positions") == 2  # the complete image is always drawn
