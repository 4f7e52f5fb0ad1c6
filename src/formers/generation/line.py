"""A text on its way: the tokens written for one prompt, their bytes, and why the writing ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from formers.core import FormersError
from formers.data import Bytes, Tokenizer
from formers.model import Model, Seq2Seq

Why = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Ends:
    """Where a text ends: at the token that says so, or before a stop string."""

    tokenizer: Tokenizer | None
    """None where there is none: then only token ids are known."""
    stops: tuple[bytes, ...] = ()

    @property
    def token(self) -> int | None:
        """The id of the end token, where there is one."""
        return self.tokenizer.special("end") if self.tokenizer is not None and "end" in self.tokenizer.specials else None

    def held(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a stop string."""
        for size in range(min(max(map(len, self.stops), default=1) - 1, len(data)), 0, -1):
            if any(stop.startswith(data[len(data) - size :]) for stop in self.stops):
                return size
        return 0


@dataclass(eq=False)
class Line:
    """What has been written for a prompt so far."""

    number: int
    """Which prompt, counted from 0."""
    sample: int
    """Which of its samples."""
    read: list[int]
    """The tokens that are read first: the prompt, or an encoder-decoder's begin token."""
    draws: Iterator[float]
    source: list[int] | None = None
    """What an encoder-decoder reads."""
    ids: list[int] = field(default_factory=list)
    """What was written, without an end token."""
    data: bytes = b""
    """The bytes of what was written, up to a stop string."""
    why: Why | None = None
    """Why it ended; None while it goes on."""
    score: float = 0.0
    """Of a beam search: the penalised log-probability."""

    def add(self, token: int, ends: Ends) -> None:
        """Writes a token, unless the text has ended; ends it where the token does."""
        if self.why is not None:
            return
        if token == ends.token:
            self.why = "end"
            return
        self.ids.append(token)
        if ends.tokenizer is None:
            return
        before = len(self.data)
        self.data += ends.tokenizer.to_bytes([token])
        found = [at for stop in ends.stops if (at := self.data.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if found:
            self.data, self.why = self.data[: min(found)], "stop"

    @property
    def text(self) -> str:
        """What was written, as text."""
        return self.data.decode("utf-8", errors="replace")


def tokenizer_of(model: Model) -> Tokenizer:
    """The tokenizer that came with a model, or bytes for a model that has their 256 ids; a model of images has none."""
    if model.spec.image is not None:
        raise FormersError(
            f"{model.spec.name or 'this model'} is a model of images, which reads and writes no text: use `formers generate RUN --out "
            "grid.png`, `formers eval RUN`, or `formers show attention RUN --image FILE`."
        )
    if model.tokenizer is not None:
        return model.tokenizer
    if model.spec.vocab == 256:
        return Bytes()
    if isinstance(model, Seq2Seq):
        raise FormersError("this model has no tokenizer, so nothing says how a target begins and ends: set model.tokenizer.")
    raise FormersError(f"this model of vocab={model.spec.vocab} has no tokenizer: give token ids, or set model.tokenizer.")
