"""Pillow: PNG, JPEG and WebP files as arrays of bytes.

Only the decoders of these three formats run. Pillow's limit on the pixels of an image holds, and its warning is an error here.
Orientation in the EXIF data is applied; 16-bit values lose their low byte; palettes and CMYK become RGB; what is transparent is put
on white; 1-bit images become 0 and 255.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")


class BadFile(Exception):
    """Why a file is no image that can be read."""


def pillow(purpose: str) -> ModuleType:
    """The module PIL.Image."""
    try:
        from PIL import Image
    except ImportError:
        raise FormersError(f"{purpose} needs Pillow: pip install 'formers[images]'.") from None
    return Image


def read_image(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """A file as an array (height, width, 1) if it is grey, else (height, width, 3), at a size (height, width) if one is given."""
    library = pillow(f"reading {path.name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd metadata, which is not read
            warnings.simplefilter("error", library.DecompressionBombWarning)
            with library.open(path, formats=FORMATS) as image:
                image.verify()  # compares the checksums of a PNG, which decoding does not
            with library.open(path, formats=FORMATS) as image:
                # A JPEG of several pictures holds previews or a second view: the first is the photograph.
                if image.format != "JPEG" and image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
                    raise BadFile(f"animated, {image.n_frames} frames")
                return _array(image, size)
    except BadFile:
        raise
    except (library.DecompressionBombWarning, library.DecompressionBombError):
        raise BadFile(f"more than {library.MAX_IMAGE_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise almost any exception on broken files
        raise BadFile("empty" if _is_empty(path) else _reason(error)) from None


def fitted(image: Image, size: tuple[int, int]) -> Image:
    """The image at a size (height, width): scaled until its shorter side fits, and cropped at the centre."""
    from PIL import Image, ImageOps

    height, width = size
    return ImageOps.fit(image, (width, height), method=Image.Resampling.LANCZOS)


def _array(image: Image, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    from PIL import ImageOps

    found = _in_bytes(ImageOps.exif_transpose(image))
    array = np.asarray(found if size is None else fitted(found, size))
    return array.reshape(*array.shape[:2], -1)


def _in_bytes(image: Image) -> Image:
    """An image of any mode in mode L if it has no colour, else in mode RGB."""
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in TRANSPARENT or "transparency" in image.info:
        grey = image.mode in ("1", "L", "LA", "La")
        shown = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("L" if grey else "RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _reason(error: Exception) -> str:
    """What went wrong, in a few words and without the file's path."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "cannot be identified"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].strip(". ")


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0
