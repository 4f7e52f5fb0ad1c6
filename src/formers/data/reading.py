"""Options for reading data: tokens, held-out data, text field, image conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import Self

from formers.core import FormersError, Part
from formers.data.catalogue import NAMES
from formers.data.files import resolved


class Reading(Part):
    """Options for reading data."""

    tokens: Literal["bytes", "characters", "bpe", "words"] | None = None
    """The kind of tokens; None takes the default of the data set, else bytes."""
    valid: str | None = None
    """Held-out data; all other data are then for training."""
    field: str = "text"
    """The field of a JSON record that holds the text."""
    invalid: Literal["refuse", "replace", "skip"] = "refuse"
    """Handling of invalid UTF-8, if tokens are not bytes: raise an error, replace with U+FFFD, or skip."""
    rules: Literal[1, 2] = 2
    """How files of text are read and split. 1: by the hash of file names, UTF-16 as bytes; 2: by kind and bytes, UTF-16 decoded."""

    levels: Annotated[int, Field(ge=2, le=256)] | None = None
    """For images: the number of levels of a channel value; default: that of the data."""
    grey: bool = False
    """For images: convert colour to grey."""
    flips: bool = False
    """For images: flip half of the training images horizontally."""
    skip_bad: bool = False
    """For a folder of images: skip unreadable files."""

    @classmethod
    def of_run(cls, saved: Mapping[str, Any]) -> Self:
        """The reading that a run has saved; without a version of the rules, those of that time."""
        return cls(**{"rules": 1, **saved})

    def resolved(self) -> Self:
        """The same options with absolute paths."""
        if self.valid in NAMES and not Path(str(self.valid)).exists():
            raise FormersError(f"valid={self.valid} is a named set, which is split already: give a file, a folder or a glob.")
        return self if self.valid is None else self.replace(valid=resolved(self.valid))
