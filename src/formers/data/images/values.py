"""Images as integer levels: a part of them, a whole data set, and the choices of how they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import field_validator
from torch import Tensor

from formers.core import FormersError, Part
from formers.data.files import Parts

Shape = tuple[int, int, int]
"""Height, width, channels."""
Binary = Literal["static", "threshold", "dynamic"]
BYTE_LEVELS = 256


class ImageSet(NamedTuple):
    """Images uint8 (n, height, width, channels), and their class numbers int64 (n,) where they have classes."""

    images: Tensor
    labels: Tensor | None


class ImageData(NamedTuple):
    """Images by part, with their shape, levels and classes."""

    parts: Parts[ImageSet]
    shape: Shape
    levels: int
    """The number of levels of a channel value. Where `binary` is "dynamic" it is 2, and the parts hold the 8-bit images."""
    labels: tuple[str, ...] | None
    """The names of the classes by number."""
    about: str
    """One line: the name, the images of each part, their shape, and how they were split and converted."""
    fingerprint: str
    """Of the content and of how it was split and converted."""
    source: str
    """The absolute name, which opens the same data from any folder."""
    binary: Binary | None = None


class ImageOptions(Part):
    """How images are converted when they are read."""

    levels: int | None = None
    """The number of levels of a channel value; v of L levels becomes floor(v * levels / L). None keeps what the data have."""
    grey: bool = False
    """Colour becomes grey: the luma of ITU-R 601, rounded."""
    flips: bool = False
    """Training images are flipped horizontally at random. The batches do this."""
    skip_bad: bool = False
    """Files of a folder that cannot be read are left out with a warning, instead of an error."""

    @field_validator("levels")
    @classmethod
    def _in_range(cls, levels: int | None) -> int | None:
        if levels is not None and not 2 <= levels <= BYTE_LEVELS:
            raise FormersError(f"levels={levels} is out of range: give a number of levels from 2 to {BYTE_LEVELS}.")
        return levels


class Opened(NamedTuple):
    """Images as a reader finds them, before they are converted."""

    name: str
    makers: dict[str, Callable[[], ImageSet]]
    """What reads each part."""
    counts: dict[str, int]
    """The images of each part."""
    shape: Shape
    levels: int
    labels: tuple[str, ...] | None
    notes: tuple[str, ...]
    """How the images were split and converted, for `about`."""
    facts: list[Any]
    """What the fingerprint is computed from: sums of the content, the split, conversions."""
    source: str
    binary: Binary | None = None
