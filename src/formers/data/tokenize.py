"""Tokenizers: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from formers.core import FormersError, Slot

Ids = NDArray[np.unsignedinteger]


class Tokenizer(Slot):
    """Converts text to token ids 0 ... vocab-1 and back; lossless unless a subclass states otherwise."""

    specials: tuple[str, ...] = ()
    """Names of special tokens, with ids after all others: begin, end, mask."""

    @property
    def plain(self) -> int:
        """The number of ids that represent text."""
        raise TypeError(f"{type(self).__name__} has no ids: define plain.")

    @property
    def vocab(self) -> int:
        """The number of ids."""
        return self.plain + len(self.specials)

    def special(self, name: str) -> int:
        """The id of a special token."""
        if name not in self.specials:
            raise FormersError(f"this model's tokenizer has no {name!r} token: it has {', '.join(self.specials) or 'none'}.")
        return self.plain + self.specials.index(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        raise TypeError(f"{type(self).__name__} cannot encode: define encode(text).")

    def encode_stream(self, texts: Iterable[str]) -> Iterator[Ids]:
        """The ids of a long text given in chunks: those of the whole text, in chunks."""
        raise TypeError(f"{type(self).__name__} cannot encode streams: define encode_stream(texts).")

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of ids; special tokens have none."""
        raise TypeError(f"{type(self).__name__} has no bytes: define to_bytes(ids).")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens have none."""
        return self.text(self.to_bytes(ids))

    def text(self, data: bytes) -> str:
        """The bytes of ids as readable text."""
        return data.decode("utf-8", errors="replace")


class Bytes(Tokenizer):
    """UTF-8 bytes 0 ... 255; needs no vocabulary."""

    @property
    def plain(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        return list(to_utf8(text))

    def encode_stream(self, texts: Iterable[str]) -> Iterator[Ids]:
        for text in texts:
            yield np.frombuffer(to_utf8(text), dtype=np.uint8)

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(i for i in ids if i < 256)


class Characters(Tokenizer):
    """The characters of a text, numbered in the order of their code points."""

    characters: str
    """Every character that has an id, sorted."""

    @field_validator("characters")
    @classmethod
    def _sorted(cls, characters: str) -> str:
        if not characters or list(characters) != sorted(set(characters)):
            raise FormersError("characters must be sorted, each once, at least one: give ''.join(sorted(set(text))).")
        return characters

    @property
    def plain(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        return self._ids(text, 0).tolist()

    def encode_stream(self, texts: Iterable[str]) -> Iterator[Ids]:
        position = 0
        for text in texts:
            yield self._ids(text, position)
            position += len(text)

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        return "".join(self.characters[i] for i in ids if i < self.plain).encode("utf-8")

    def _ids(self, text: str, position: int) -> Ids:
        points, known = code_points(text), _sorted_points(self.characters)
        ids = np.minimum(np.searchsorted(known, points), len(known) - 1)
        wrong = np.flatnonzero(known[ids] != points)
        if len(wrong):
            bad = text[wrong[0]]
            raise FormersError(
                f"character {bad!r} (U+{ord(bad):04X}) at position {position + wrong[0]} is not among the {len(known)} that this "
                "tokenizer knows: remove it, or train on data that contain it; bytes and bpe know all."
            )
        return ids.astype(np.uint32)


def to_utf8(text: str) -> bytes:
    """The bytes of a text; lone surrogates become the bytes they were read from, or `?`."""
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="replace")


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text (n,)."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


@lru_cache(maxsize=8)
def _sorted_points(characters: str) -> NDArray[np.uint32]:
    return code_points(characters)
