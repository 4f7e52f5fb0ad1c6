"""Images in a terminal: half-block characters with 24-bit or 256 colours, or characters from dark to light without colours.

A half block is a character whose upper half has one colour and whose lower half has another, so that a pixel is a square. Colours are
those that the environment says: COLORTERM is truecolor or 24bit, otherwise 256 colours; none with NO_COLOR or TERM=dumb.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from types import TracebackType
from typing import Literal, TextIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from formers.core import Raster
from formers.data.progress import silent
from formers.inspect.draw.images import UNKNOWN, Rgb, enlarged, known_pixels, to_rgb
from formers.inspect.draw.terminal import has_unicode

Colours = Literal["24bit", "256", "none"]
RAMP = " :-=+*#%@"
"""Dark to light, where there are no colours; a pixel that is not known is a dot."""
DOT = "."
SMALL = 32
"""Images are enlarged until a side has about so many characters."""
SECONDS = 0.1
"""Between two drawings of an image that grows."""
GREYS = np.arange(8, 248, 10)
CUBE = np.array([0, 95, 135, 175, 215, 255])


def colours_of(environment: dict[str, str] | None = None) -> Colours:
    """How many colours the terminal has, as its environment says."""
    known = os.environ if environment is None else environment
    if known.get("NO_COLOR") or known.get("TERM") == "dumb":
        return "none"
    return "24bit" if known.get("COLORTERM", "").lower() in ("truecolor", "24bit") else "256"


def render(
    image: Tensor,
    levels: int,
    known: NDArray[np.bool_] | Tensor | None = None,
    width: int = 80,
    height: int | None = None,
    colours: Colours | None = None,
    encoding: str = "utf-8",
) -> str:
    """An image (height, width, channels) of integer levels as lines of at most `width` characters, and `height` lines if given.

    known: which pixels (height, width) are drawn in their colours. Small images are enlarged; of images that are too large every n-th
    pixel is shown.
    """
    return render_rgb(to_rgb(image[None], levels)[0], None if known is None else np.asarray(known), width, height, colours, encoding)


def render_rgb(
    rgb: Rgb,
    known: NDArray[np.bool_] | None = None,
    width: int = 80,
    height: int | None = None,
    colours: Colours | None = None,
    encoding: str = "utf-8",
) -> str:
    """A picture uint8 (height, width, 3) as lines of characters, as `render` draws an image."""
    colours = colours_of() if colours is None else colours
    known = np.ones(rgb.shape[:2], dtype=bool) if known is None else known
    if not has_unicode(encoding):
        colours = "none"
    rgb, known = _fitted(rgb, known, width, height)
    return "\n".join(_characters(rgb, known) if colours == "none" else _half_blocks(rgb, known, colours))


class LiveImage:
    """The first images of a batch while they are sampled, redrawn in place on a terminal; where standard error is not one, or with -q,
    nothing is written.

        with LiveImage((height, width, channels), levels, raster) as live:
            live.update(cells)
    """

    def __init__(
        self, shape: tuple[int, int, int], levels: int, raster: Raster, file: TextIO | None = None, seconds: float = SECONDS
    ) -> None:
        self.shape, self.levels, self.raster, self.seconds = shape, levels, raster, seconds
        self.file = sys.stderr if file is None else file
        self.shown = self.file.isatty() and not silent()
        self.lines = 0
        self.start, self.last = time.perf_counter(), -math.inf
        self.first: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def update(self, cells: Tensor, done: int | None = None) -> None:
        """Draws the cells so far (images, positions), or pixels (images, positions, channels), at most ten times a second.

        done: how many of the positions count; all unless given. So the tensor may be one of all positions that is filled step by step.
        """
        now, done = time.perf_counter(), cells.shape[1] if done is None else done
        if self.first is None:
            self.first, self.start = done, now
        if not self.shown or (now - self.last < self.seconds and done < self.raster.cells):
            return
        self.last = now
        columns, rows = shutil.get_terminal_size()
        text = self._drawn(cells, done, columns - 1, rows - 2)
        text.append(self._progress(done, now - self.start)[: columns - 1])
        back = f"\x1b[{self.lines}A\r" if self.lines else ""
        self.file.write(back + "".join(f"{line}\x1b[K\n" for line in text))
        self.file.flush()
        self.lines = len(text)

    def close(self) -> None:
        """Leaves the last drawing on the screen."""
        if self.shown and self.lines:
            self.file.write("\x1b[0m")
            self.file.flush()

    def _drawn(self, cells: Tensor, done: int, columns: int, rows: int) -> list[str]:
        """The lines of as many images as fit side by side."""
        height, width, _ = self.shape
        scale = max(1, min(_enlarging(height, width), columns // width, 2 * rows // height))
        count = max(1, min(len(cells), (columns + 2) // (width * scale + 2)))
        stream = cells[:count].cpu().clone()
        stream[:, done:] = 0
        missing = self.raster.cells - stream.shape[1]
        if missing > 0:
            stream = F.pad(stream, (0, 0) * (stream.dim() - 2) + (0, missing))
        rgb = to_rgb(self.raster.to_images(stream), self.levels)
        known = known_pixels(self.raster, done)
        encoding = self.file.encoding or "ascii"
        drawings = [render_rgb(image, known, min(columns, width * scale), rows, None, encoding).split("\n") for image in rgb]
        return ["  ".join(parts) for parts in zip(*drawings, strict=True)]

    def _progress(self, done: int, seconds: float) -> str:
        total, made = self.raster.cells, done - (self.first or 0)
        text = f"{done:,} of {total:,} positions"
        if made <= 0 or seconds <= 0:
            return text
        rate = made / seconds
        left = (total - done) / rate
        return f"{text}, {rate:,.0f} a second, " + (f"{left:,.0f} s left" if done < total else f"{seconds:,.1f} s")


def _enlarging(height: int, width: int) -> int:
    """The factor for a small image: 1 or even, so that a character never shows two pixels."""
    return max(1, SMALL // max(height, width) // 2 * 2)


def _fitted(rgb: Rgb, known: NDArray[np.bool_], width: int, height: int | None) -> tuple[Rgb, NDArray[np.bool_]]:
    """The picture and the known pixels, enlarged or thinned out to at most `width` pixels and twice `height`."""
    tall, wide = rgb.shape[:2]
    room = math.inf if height is None else 2 * height
    each = math.ceil(max(wide / max(1, width), tall / room))
    if each > 1:
        return rgb[each // 2 :: each, each // 2 :: each][: int(min(room, tall))], known[each // 2 :: each, each // 2 :: each]
    scale = int(max(1, min(_enlarging(tall, wide), width // wide, room // tall)))
    return enlarged(rgb, scale), known.repeat(scale, axis=0).repeat(scale, axis=1)


def _half_blocks(rgb: Rgb, known: NDArray[np.bool_], colours: Colours) -> list[str]:
    """Two rows of pixels a line; the lower half of the last line stays empty where there is an odd number of rows."""
    rgb = np.where(known[..., None], rgb, np.array(UNKNOWN, dtype=np.uint8))
    codes = _codes(rgb, colours)
    lines = []
    for y in range(0, len(rgb), 2):
        line, before = "", ""
        for x in range(rgb.shape[1]):
            below = f";48;{codes[y + 1][x]}" if y + 1 < len(rgb) else ""
            style = f"\x1b[38;{codes[y][x]}{below}m"
            line += "▀" if style == before else style + "▀"
            before = style
        lines.append(line + "\x1b[0m")
    return lines


def _codes(rgb: Rgb, colours: Colours) -> list[list[str]]:
    """The colour of each pixel as the numbers of an escape sequence."""
    if colours == "24bit":
        return [[f"2;{r};{g};{b}" for r, g, b in row] for row in rgb.tolist()]
    return [[f"5;{number}" for number in row] for row in _of_256(rgb).tolist()]


def _of_256(rgb: Rgb) -> NDArray[np.int64]:
    """The nearest of the 6 x 6 x 6 colours and 24 greys that terminals number from 16 to 255."""
    values = rgb.astype(np.int64)
    steps = np.abs(values[..., None] - CUBE).argmin(axis=-1)
    cube = 16 + steps @ np.array([36, 6, 1])
    grey = np.abs(values.mean(axis=-1)[..., None] - GREYS).argmin(axis=-1)
    far = ((CUBE[steps] - values) ** 2).sum(axis=-1)
    return np.where(((GREYS[grey][..., None] - values) ** 2).sum(axis=-1) < far, 232 + grey, cube)


def _characters(rgb: Rgb, known: NDArray[np.bool_]) -> list[str]:
    """A character for two pixels, one above the other, by their mean brightness."""
    light = rgb.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    lines = []
    for y in range(0, len(rgb), 2):
        mean, there = light[y : y + 2].mean(axis=0).tolist(), np.all(known[y : y + 2], axis=0).tolist()
        marks = [RAMP[min(int(value / 256 * len(RAMP)), len(RAMP) - 1)] for value in mean]
        lines.append("".join(mark if sure else DOT for mark, sure in zip(marks, there, strict=True)))
    return lines
