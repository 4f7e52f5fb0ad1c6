"""How data are read: the choices that turn files into tokens."""

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
    """Tokens, held-out data, the field of a record, and what to do with bytes that are no text."""

    tokens: Literal["bytes", "characters", "bpe", "words"] | None = None
    """What a token is; None takes what the data set suggests, else bytes."""
    valid: str | None = None
    """Data to judge by; all of the other data are then for training."""
    field: str = "text"
    """The field of a JSON record that holds the text."""
    invalid: Literal["refuse", "replace", "skip"] = "refuse"
    """What becomes of bytes that are not UTF-8, where tokens are not bytes: an error, U+FFFD, or nothing."""
    rules: Literal[1, 2] = 2
    """How files of text are read and split. 1: files by the hash of their names, UTF-16 as it is; 2: by kind and bytes, UTF-16 decoded."""

    levels: Annotated[int, Field(ge=2, le=256)] | None = None
    """Of images: how many levels a channel value has; those of the data unless given."""
    grey: bool = False
    """Of images: whether colour becomes grey."""
    flips: bool = False
    """Of images: whether training flips half of them, left to right."""
    skip_bad: bool = False
    """Of a folder of images: whether files that cannot be read are left out."""

    @classmethod
    def of_run(cls, saved: Mapping[str, Any]) -> Self:
        """The reading that a run has saved; without a version of the rules, those of that time."""
        return cls(**{"rules": 1, **saved})

    def resolved(self) -> Self:
        """The same reading, which finds its files from any folder."""
        if self.valid in NAMES and not Path(str(self.valid)).exists():
            raise FormersError(f"valid={self.valid} is a named set, which has parts of its own: give a file, a folder or a glob.")
        return self if self.valid is None else self.replace(valid=resolved(self.valid))
