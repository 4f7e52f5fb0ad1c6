"""Images as pictures: every pixel is where it belongs, and frames follow the generation order."""

from __future__ import annotations

import builtins
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from formers.core import Raster
from formers.inspect.draw.images import (
    FRAMES,
    UNKNOWN,
    grid,
    growing,
    known_pixels,
    rows_with_titles,
    save_gif,
    save_growing,
    save_png,
    to_rgb,
)
from helpers import refused, sweep


def images(count: int, height: int, width: int, channels: int = 1, levels: int = 17) -> torch.Tensor:
    return torch.randint(levels, (count, height, width, channels))


def test_levels_become_bytes() -> None:
    given = torch.tensor([0, 1, 8, 15, 16]).view(1, 1, 5, 1)
    assert to_rgb(given, 17)[0, 0].tolist() == [[v] * 3 for v in (0, 16, 128, 239, 255)]
    assert to_rgb(torch.arange(256).view(1, 16, 16, 1), 256).reshape(256, 3)[:, 0].tolist() == list(range(256))
    assert to_rgb(torch.tensor([0, 1]).view(1, 1, 2, 1), 2)[0, 0, :, 0].tolist() == [0, 255]
    two, four = images(1, 2, 3, 2), images(1, 2, 3, 4)
    assert (to_rgb(two, 17)[..., 2] == 0).all()
    assert (to_rgb(two, 17)[..., :2] == to_rgb(torch.cat([two, two], dim=3)[..., :3], 17)[..., :2]).all()
    assert (to_rgb(four, 17) == to_rgb(four[..., :3], 17)).all()


def test_a_grid_has_each_image_at_its_place() -> None:
    given = images(5, 3, 4, 3)
    page = grid(given, 17, columns=2, scale=2, gap=3)
    assert page.shape == (3 + 3 * (6 + 3), 3 + 2 * (8 + 3), 3)
    rgb = to_rgb(given, 17)
    for place in range(5):
        top, left = 3 + place // 2 * 9, 3 + place % 2 * 11
        for y in range(6):
            for x in range(8):
                assert page[top + y, left + x].tolist() == rgb[place, y // 2, x // 2].tolist()
    assert (page[-9:-3, 14:] == 255).all()  # the place that is left
    assert (page[:3] == 255).all()


@sweep(("count", "columns"), [(1, 1), (2, 2), (4, 2), (10, 5), (16, 4), (7, 4), (13, 7)])
def test_grids_are_nearly_square_and_visible(count: int, columns: int) -> None:
    page = grid(images(count, 8, 8), 17)
    assert page.shape[1] == 4 + columns * (96 + 4)
    assert page.shape[0] == 4 + -(-count // columns) * (96 + 4)


@sweep("raster", [Raster(height=5, width=7), Raster(height=5, width=7, channels=3, block=(2, 3)), Raster(height=4, width=4, block=(2, 2))])
def test_frames_follow_the_order(raster: Raster) -> None:
    given = images(2, raster.height, raster.width, 3)
    rgb = to_rgb(given, 17)
    frames = list(growing(given, 17, raster, columns=2, scale=1, gap=0))
    assert len(frames) == raster.pixels + 1
    for count, frame in enumerate(frames):
        shown = [raster.cell(t * raster.channels)[:2] for t in range(count)]
        for row in range(raster.height):
            for column in range(raster.width):
                for number in range(2):
                    wanted = rgb[number, row, column].tolist() if (row, column) in shown else list(UNKNOWN)
                    assert frame[row, number * raster.width + column].tolist() == wanted
    assert (frames[-1] == grid(given, 17, columns=2, scale=1, gap=0)).all()


def test_a_pixel_is_known_when_all_its_channels_are() -> None:
    raster = Raster(height=2, width=2, channels=3)
    assert known_pixels(raster, 5).tolist() == [[True, False], [False, False]]
    assert known_pixels(raster, 6).tolist() == [[True, True], [False, False]]


def test_large_images_have_few_frames_and_given_cells_are_there_first() -> None:
    raster = Raster(height=40, width=30, block=(8, 8))
    frames = list(growing(images(1, 40, 30), 17, raster, scale=1, gap=0))
    assert len(frames) == FRAMES
    unknown = [int((frame == np.array(UNKNOWN)).all(axis=-1).sum()) for frame in frames]
    assert unknown[0] == 1200
    assert unknown[-1] == 0
    assert all(a > b for a, b in pairwise(unknown))
    first = next(growing(images(1, 40, 30), 17, raster, given=600, scale=1, gap=0))
    assert (((first == np.array(UNKNOWN)).all(axis=-1)) == ~known_pixels(raster, 600)).all()


def test_png_files_are_read_back(tmp_path: Path) -> None:
    page = grid(images(3, 5, 6, 3, 256), 256, scale=1)
    assert save_png(tmp_path / "a.png", page) == tmp_path / "a.png"
    with Image.open(tmp_path / "a.png") as found:
        assert found.mode == "RGB"
        assert (np.asarray(found) == page).all()


@sweep("channels", [1, 3])
def test_gif_files_hold_the_frames(tmp_path: Path, channels: int) -> None:
    raster, given = Raster(height=6, width=6, block=(3, 3)), images(2, 6, 6, channels)
    save_growing(tmp_path / "a.gif", given, 17, raster)
    frames = list(growing(given, 17, raster))
    with Image.open(tmp_path / "a.gif") as found:
        assert found.n_frames == len(frames) == 37
        assert found.info["loop"] == 0
        for number in (0, 10, 36):
            found.seek(number)
            assert (np.asarray(found.convert("RGB")) == frames[number]).all()
        assert found.info["duration"] == 2500


def test_many_colours_are_reduced(tmp_path: Path) -> None:
    given = images(1, 32, 32, 3, 256)
    save_gif(tmp_path / "a.gif", [np.full((32, 32, 3), UNKNOWN, dtype=np.uint8), to_rgb(given, 256)[0]])
    with Image.open(tmp_path / "a.gif") as found:
        assert (np.asarray(found.convert("RGB")) == UNKNOWN).all()
        found.seek(1)
        assert np.abs(np.asarray(found.convert("RGB")).astype(int) - to_rgb(given, 256)[0]).mean() < 30


def test_rows_have_titles_and_one_size() -> None:
    small, large = images(3, 2, 2), images(3, 8, 8, 3)
    page = rows_with_titles({"inputs": small, "samples": large}, 17, captions=["a", "b", "c"])
    left = page.shape[1] - 3 * (96 + 6) - 6
    assert (page[6:54, left : left + 48] == to_rgb(small, 17)[0, 0, 0]).all()
    assert (page[6 + 102 : 6 + 114, left + 102 : left + 114] == to_rgb(large, 17)[1, 0, 0]).all()
    assert (page[:, :left] < 128).any()  # the titles
    assert (page[6 + 2 * 102 :, left:] < 128).any()  # the captions
    wrapped = rows_with_titles({"samples": images(5, 8, 8)}, 17, columns=2)
    assert wrapped.shape[0] == 3 * (96 + 6 + 6) + 6


def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("0 ... 16"):
        to_rgb(images(1, 2, 2) + 17, 17)
    with refused("(2, 2)", "channels"):
        to_rgb(torch.zeros(2, 2, dtype=torch.int64), 17)
    with refused("levels=1"):
        to_rgb(images(1, 2, 2), 1)
    with refused("2 x 2", "3 x 2"):
        list(growing(images(1, 2, 2), 17, Raster(height=3, width=2)))
    with refused("[1, 2]"):
        rows_with_titles({"a": images(1, 2, 2), "b": images(2, 2, 2)}, 17)
    with refused("a.jpg", ".png"):
        save_png(tmp_path / "a.jpg", grid(images(1, 2, 2), 17))
    with refused("nowhere"):
        save_png(tmp_path / "nowhere" / "a.png", grid(images(1, 2, 2), 17))
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with refused("a.gif", "Pillow"):
        save_gif(tmp_path / "a.gif", [grid(images(1, 2, 2), 17)])
    assert save_png(tmp_path / "a.png", grid(images(1, 2, 2), 17)).is_file()
