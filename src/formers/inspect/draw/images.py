"""Images of integer levels as pictures: grids, rows with titles, PNG files, and GIF files in which cells appear as they are generated.

A level v of L becomes the byte round(255 v / (L - 1)). One channel is grey, two are red and green, of four and more the first three are
shown. Small images are enlarged by whole factors, so that every pixel stays a sharp square.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError, Raster
from formers.data.images.pillow import pillow
from formers.model.files import write

Rgb = NDArray[np.uint8]
UNKNOWN = (150, 178, 214)
"""The colour of a pixel that is not generated yet: a blue that grey images do not have."""
PAPER, INK = (255, 255, 255), (51, 51, 51)
SIDE = 96
"""Images are enlarged until their longer side has about so many pixels."""
WIDEST = 1600
"""Pixels of a picture's width at which images are enlarged no further."""
FRAMES = 100
"""Frames of a growing picture at most."""


def to_rgb(images: Tensor, levels: int) -> Rgb:
    """Integer images (n, height, width, channels) of `levels` levels as uint8 (n, height, width, 3)."""
    if levels < 2:
        raise FormersError(f"levels={levels} is no number of levels: give at least 2.")
    if images.dim() != 4 or 0 in images.shape or images.is_floating_point():
        raise FormersError(
            f"images are {images.dtype} of shape {tuple(images.shape)}: give integers of shape (images, height, width, channels)."
        )
    if int(images.min()) < 0 or int(images.max()) >= levels:
        raise FormersError(f"images have values {int(images.min())} ... {int(images.max())}: give levels 0 ... {levels - 1}.")
    values = images.cpu().numpy().astype(np.int64)
    scaled = ((2 * 255 * values + levels - 1) // (2 * (levels - 1))).astype(np.uint8)
    channels = images.shape[3]
    if channels == 1:
        return np.repeat(scaled, 3, axis=3)
    return np.concatenate([scaled, np.zeros_like(scaled[..., :1])], axis=3) if channels == 2 else scaled[..., :3]


def enlarged(rgb: Rgb, scale: int) -> Rgb:
    """Images (..., height, width, 3) with each pixel as a square of scale x scale."""
    return rgb.repeat(scale, axis=-3).repeat(scale, axis=-2) if scale > 1 else rgb


def grid(images: Tensor, levels: int, columns: int | None = None, scale: int | None = None, gap: int = 4) -> Rgb:
    """Images side by side, row after row, as one picture uint8 (height, width, 3) with `gap` white pixels around each."""
    return _tiled(to_rgb(images, levels), columns, scale, gap)


def known_pixels(raster: Raster, cells: int) -> NDArray[np.bool_]:
    """Which pixels (height, width) are complete after so many cells of the generation order."""
    place = np.empty(raster.pixels, dtype=np.int64)
    place[raster.replace(channels=1).order().numpy()] = np.arange(raster.pixels)
    return (place < cells // raster.channels).reshape(raster.height, raster.width)


def growing(
    images: Tensor, levels: int, raster: Raster, given: int = 0, columns: int | None = None, scale: int | None = None, gap: int = 4
) -> Iterator[Rgb]:
    """At most 100 grids in which the pixels of complete images appear in the order of the raster; the last one is complete.

    given: how many cells of the order are there from the beginning, as in a completion.
    """
    rgb = to_rgb(images, levels)
    if rgb.shape[1:3] != (raster.height, raster.width):
        raise FormersError(
            f"images of {rgb.shape[1]} x {rgb.shape[2]} pixels do not match an order of {raster.height} x {raster.width}: "
            "give the order of these images."
        )
    first, last = given // raster.channels, raster.pixels
    for pixels in np.unique(np.linspace(first, last, min(FRAMES, last - first + 1)).round().astype(int)):
        known = known_pixels(raster, int(pixels) * raster.channels)
        yield _tiled(np.where(known[..., None], rgb, np.array(UNKNOWN, dtype=np.uint8)), columns, scale, gap)


def rows_with_titles(
    rows: Mapping[str, Tensor], levels: int, columns: int = 8, captions: Sequence[str] | None = None, scale: int | None = None
) -> Rgb:
    """Rows of images with their titles on the left, e.g. inputs, samples and originals; images at one place belong together.

    More than `columns` images continue below. Images of different sizes, as in super-resolution, are enlarged to one size. captions:
    a line below each column of images.
    """
    pictures = {title: to_rgb(images, levels) for title, images in rows.items()}
    counts = {len(picture) for picture in pictures.values()}
    if len(counts) != 1 or (captions is not None and {len(captions)} != counts):
        raise FormersError(f"the rows have {sorted(len(p) for p in pictures.values())} images: give each row, and captions, as many.")
    count = counts.pop()
    columns = min(columns, count)
    high, wide = (max(picture.shape[axis] for picture in pictures.values()) for axis in (1, 2))
    factor = _scale(high, wide, columns) if scale is None else scale
    cell = (high * factor, wide * factor)
    text, gap = max(11, min(16, cell[1] // 6)), 6
    left = 2 * gap + max(_text_size(title, text)[0] for title in pictures)
    below = text + gap if captions else 0
    strip = (cell[0] + gap) * len(pictures) + below + gap
    page = np.full((strip * math.ceil(count / columns) + gap, left + (cell[1] + gap) * columns + gap, 3), PAPER, dtype=np.uint8)
    words: list[tuple[str, float, float, str]] = []
    for group, start in enumerate(range(0, count, columns)):
        top = gap + group * strip
        for row, (title, picture) in enumerate(pictures.items()):
            y = top + row * (cell[0] + gap)
            words.append((title, left - gap, y + cell[0] / 2, "rm"))
            for column, image in enumerate(picture[start : start + columns]):
                _paste(page, image, y, left + column * (cell[1] + gap), cell)
        for column, caption in enumerate((captions or ())[start : start + columns]):
            words.append((caption, left + column * (cell[1] + gap) + cell[1] / 2, top + len(pictures) * (cell[0] + gap), "ma"))
    return _written(page, words, text)


def save_png(path: str | Path, rgb: Rgb) -> Path:
    """Writes a picture uint8 (height, width, 3) as a PNG file, without any library, and returns its path."""
    path = _checked_suffix(path, ".png")
    height, width, _ = rgb.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = rgb.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return _write(path, b"\x89PNG\r\n\x1a\n" + body)


def save_gif(path: str | Path, frames: Iterable[Rgb], final: Rgb | None = None, milliseconds: int = 60, hold: int = 2500) -> Path:
    """Writes frames uint8 (height, width, 3) as an animated GIF file that repeats, and returns its path.

    final: a picture with all colours of the frames; the last frame unless given. It is shown for `hold` milliseconds.
    """
    path = _checked_suffix(path, ".gif")
    library = pillow(f"writing {path.name}")
    if final is None:
        frames = list(frames)
        final = frames[-1]
    index = _Palette(final, library)
    pictures = [index.indexed(frame) for frame in frames]
    times = [milliseconds] * (len(pictures) - 1) + [hold]
    content = io.BytesIO()
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0, disposal=1, optimize=False)
    return _write(path, content.getvalue())


def save_growing(path: str | Path, images: Tensor, levels: int, raster: Raster, given: int = 0, columns: int | None = None) -> Path:
    """Writes a GIF file in which images appear in their generation order, and returns its path."""
    frames = growing(images, levels, raster, given, columns)
    return save_gif(path, frames, final=grid(images, levels, columns))


class _Palette:
    """At most 256 colours: those of a picture, exactly where there are few enough, and the colours of unknown pixels and of paper."""

    def __init__(self, final: Rgb, library: Any) -> None:
        self.library = library
        extra = np.array([UNKNOWN, PAPER], dtype=np.uint8)
        colours = np.unique(np.concatenate([final.reshape(-1, 3), extra]), axis=0)
        self.exact = len(colours) <= 256
        if not self.exact:
            chosen = library.fromarray(final).quantize(254, method=library.Quantize.MEDIANCUT).getpalette()[: 3 * 254]
            colours = np.concatenate([np.array(chosen, dtype=np.uint8).reshape(-1, 3), extra])
        self.colours = colours
        self.image = library.new("P", (1, 1))
        self.image.putpalette(colours.tobytes())

    def indexed(self, frame: Rgb) -> Any:
        """A frame as an image of indices into the palette."""
        if not self.exact:
            return self.library.fromarray(frame).quantize(palette=self.image, dither=self.library.Dither.NONE)
        packed, known = _packed(frame), _packed(self.colours)
        picture = self.library.fromarray(np.searchsorted(known, packed).astype(np.uint8), "P")
        picture.putpalette(self.colours.tobytes())
        return picture


def _packed(colours: Rgb) -> NDArray[np.int64]:
    """Colours (..., 3) as numbers, in the order of `np.unique`."""
    return colours.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])


def _tiled(rgb: Rgb, columns: int | None, scale: int | None, gap: int) -> Rgb:
    count, height, width, _ = rgb.shape
    columns = _columns(count) if columns is None else min(columns, count)
    factor = _scale(height, width, columns) if scale is None else scale
    rows, tall, wide = math.ceil(count / columns), height * factor, width * factor
    page = np.full((gap + rows * (tall + gap), gap + columns * (wide + gap), 3), PAPER, dtype=np.uint8)
    for place, image in enumerate(rgb):
        top, left = gap + place // columns * (tall + gap), gap + place % columns * (wide + gap)
        page[top : top + tall, left : left + wide] = enlarged(image, factor)
    return page


def _columns(count: int) -> int:
    """Columns of a grid that is not too far from a square and leaves few places empty."""
    least = math.ceil(math.sqrt(count))
    return min(range(least, min(count, 2 * least) + 1), key=lambda columns: (-count % columns, columns))


def _scale(height: int, width: int, columns: int) -> int:
    """The factor by which images are enlarged."""
    return max(1, min(round(SIDE / max(height, width)), WIDEST // (width * columns)))


def _paste(page: Rgb, image: Rgb, top: int, left: int, cell: tuple[int, int]) -> None:
    """Puts an image into a cell (height, width) of a page, as large as fits, at its centre."""
    shown = enlarged(image, max(1, min(cell[0] // image.shape[0], cell[1] // image.shape[1])))
    y, x = top + (cell[0] - shown.shape[0]) // 2, left + (cell[1] - shown.shape[1]) // 2
    page[y : y + shown.shape[0], x : x + shown.shape[1]] = shown


def _font(size: int) -> Any:
    pillow("writing titles into a picture")
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _text_size(text: str, size: int) -> tuple[int, int]:
    left, top, right, bottom = _font(size).getbbox(text)
    return math.ceil(right - left), math.ceil(bottom - top)


def _written(page: Rgb, words: list[tuple[str, float, float, str]], size: int) -> Rgb:
    """A page with words at places (x, y); the letters say which point of the text is there, as Pillow's anchors do."""
    from PIL import Image, ImageDraw

    picture = Image.fromarray(page)
    pen, font = ImageDraw.Draw(picture), _font(size)
    for text, x, y, anchor in words:
        pen.text((x, y), text, fill=INK, font=font, anchor=anchor)
    return np.asarray(picture)


def _checked_suffix(path: str | Path, suffix: str) -> Path:
    path = Path(path)
    if path.suffix.lower() != suffix:
        raise FormersError(f"{path.name!r} does not end in {suffix}: choose a name that does.")
    return path


def _write(path: Path, content: bytes) -> Path:
    try:
        write(path, content)
    except OSError as error:
        raise FormersError(
            f"cannot write {str(path)!r} ({error.strerror}): choose a folder that exists and that you may write to."
        ) from None
    return path
