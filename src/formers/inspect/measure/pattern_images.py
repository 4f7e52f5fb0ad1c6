"""A pattern on the grid of an image: which pixels one pixel sees (Parmar et al., 2018, figure 1).

Every pixel has one of five marks: Q the query, # seen in the query's own block, + seen in the memory of the block, . generated before the
query and not seen, and a space where it is generated later. Without blocks all that is seen is #. A pixel is seen if a cell of it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from formers.core import FormersError, Raster, nearest
from formers.family import members
from formers.inspect.measure.members import member_spec
from formers.inspect.measure.patterns import PAIRS, pattern_facts, pattern_key, pattern_named, pattern_names
from formers.patterns import Blocks, LocalGrid, OrderedGrid, Pattern

QUERY, OWN, MEMORY, BEFORE, LATER = "Q", "#", "+", ".", " "


@dataclass(frozen=True)
class ImageGrid:
    """The image that the positions of a pattern belong to."""

    raster: Raster
    """The generation order."""
    row_major: bool = False
    """Whether positions of the pattern are pixels row after row, whatever the generation order, as those of LocalGrid are."""

    @property
    def length(self) -> int:
        return self.raster.pixels if self.row_major else self.raster.cells

    def place(self) -> NDArray[np.int64]:
        """When each pixel (height, width) is generated."""
        place = np.empty(self.raster.pixels, dtype=np.int64)
        place[self.raster.replace(channels=1).order().numpy()] = np.arange(self.raster.pixels)
        return place.reshape(self.raster.height, self.raster.width)

    def position(self, pixel: tuple[int, int]) -> int:
        """The position of the first cell of a pixel (row, column)."""
        if self.row_major:
            return pixel[0] * self.raster.width + pixel[1]
        return int(self.place()[pixel]) * self.raster.channels

    def pixels(self, positions: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which pixels (height, width) have a cell among positions (length,)."""
        if self.row_major:
            return positions.reshape(self.raster.height, self.raster.width)
        by_pixel: NDArray[np.bool_] = np.logical_or.reduce(positions.reshape(self.raster.pixels, self.raster.channels), axis=1)
        return by_pixel[self.place()]


def pattern_or_member(name: str, options: Mapping[str, Any], size: tuple[int, int, int] | None = None) -> tuple[Pattern, ImageGrid | None]:
    """The pattern of a name, or of the member of a name, and the image that its positions are of, if they are.

    size: height, width and channels of an image whose cells are the positions, row after row.
    """
    known = {pattern_key(one) for one in pattern_names()}
    if pattern_key(name) not in known and name in members():
        spec = member_spec(name, options=options)
        return spec.pattern, _sized(spec.pattern, size, spec.image)
    if pattern_key(name) not in known:
        raise FormersError(f"there is no pattern or member {name!r}: {nearest(name, [*pattern_names(), *members()])}")
    pattern = pattern_named(name, options)
    return pattern, _sized(pattern, size, None)


def _sized(pattern: Pattern, size: tuple[int, int, int] | None, image: Raster | None) -> ImageGrid | None:
    found = image_grid(pattern, image)
    if size is None:
        return found
    if found is not None:
        raise FormersError(f"--size {'x'.join(map(str, size))} is given, and the pattern has its own image: leave --size out.")
    return ImageGrid(Raster(height=size[0], width=size[1], channels=size[2]))


def image_grid(pattern: Pattern, image: Raster | None = None) -> ImageGrid | None:
    """The image of a pattern: that of its spec where there is one, or its own."""
    if isinstance(pattern, LocalGrid):
        return ImageGrid(OrderedGrid(grid=pattern).raster, row_major=True)
    if isinstance(pattern, OrderedGrid):
        return ImageGrid(pattern.raster)
    return None if image is None else ImageGrid(image)


def default_pixel(pattern: Pattern, grid: ImageGrid) -> tuple[int, int]:
    """The middle of the block at the centre of the image; without blocks a pixel a little below the centre."""
    raster = grid.raster
    if isinstance(pattern, LocalGrid | OrderedGrid):
        h, w = raster.block or (raster.height, raster.width)
        top, left = raster.height // 2 // h * h, raster.width // 2 // w * w
        return top + (min(h, raster.height - top) - 1) // 2, left + min(w, raster.width - left) // 2
    if isinstance(pattern, Blocks):
        start = grid.length // 2 // pattern.query * pattern.query
        row, column, _ = raster.cell(start + (min(pattern.query, grid.length - start)) // 2)
        return row, column
    return raster.height * 5 // 8, raster.width // 2


def pixel_marks(pattern: Pattern, grid: ImageGrid, pixel: tuple[int, int] | None = None, head: int = 0, layer: int = 0) -> list[str]:
    """The marks of all pixels, a string for each row, for the query at the first cell of a pixel."""
    here, length = pattern.at(layer).of(grid.length), grid.length
    pixel = checked_pixel(pattern.at(layer), grid, pixel)
    position, keys = grid.position(pixel), torch.arange(length)
    seen = grid.pixels(np.broadcast_to(np.asarray(here.allows(torch.tensor(position), keys, head)), (length,)))
    own = own_block(pattern.at(layer), grid, pixel)
    place = grid.place()
    marks = np.full(seen.shape, LATER)
    marks[place < place[pixel]] = BEFORE
    marks[seen] = OWN
    if own is not None:
        marks[seen & ~own] = MEMORY
    marks[pixel] = QUERY
    return ["".join(row) for row in marks.tolist()]


def on_image_facts(
    pattern: Pattern, grid: ImageGrid, pixel: tuple[int, int] | None = None, length: int | None = None, heads: int = 1, layer: int = 0
) -> dict[str, Any]:
    """What the drawing shows, ready for JSON: the facts of the pattern, and the marks of all pixels, row by row, for each head."""
    facts = pattern_facts(pattern, matrix_length(grid, length), heads, layer)
    pixel = checked_pixel(pattern.at(layer), grid, pixel)
    seen = [pixel_marks(pattern, grid, pixel, head, layer) for head in range(heads if facts["by_head"] else 1)]
    return {**facts, "image": grid.raster.model_dump(mode="json"), "pixel": list(pixel), "position": grid.position(pixel), "seen": seen}


def matrix_length(grid: ImageGrid, length: int | None) -> int:
    """How much of the matrix is drawn: all, if that is possible."""
    return min(grid.length, int(PAIRS**0.5)) if length is None else length


def checked_pixel(pattern: Pattern, grid: ImageGrid, pixel: tuple[int, int] | None) -> tuple[int, int]:
    row, column = default_pixel(pattern, grid) if pixel is None else pixel
    if not (0 <= row < grid.raster.height and 0 <= column < grid.raster.width):
        last = f"{grid.raster.height - 1},{grid.raster.width - 1}"
        raise FormersError(f"pixel {row},{column} is outside the image: give ROW,COLUMN from 0,0 to {last}.")
    return row, column


def own_block(pattern: Pattern, grid: ImageGrid, pixel: tuple[int, int]) -> NDArray[np.bool_] | None:
    """The pixels (height, width) of the query's block, None where a pattern has no blocks."""
    raster = grid.raster
    if isinstance(pattern, LocalGrid | OrderedGrid):
        h, w = raster.block or (raster.height, raster.width)
        rows, columns = np.arange(raster.height) // h == pixel[0] // h, np.arange(raster.width) // w == pixel[1] // w
        return rows[:, None] & columns
    if isinstance(pattern, Blocks):
        blocks = np.arange(grid.length) // pattern.query
        return grid.pixels(blocks == blocks[grid.position(pixel)])
    return None
