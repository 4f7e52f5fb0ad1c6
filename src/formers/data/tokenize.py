"""Text as numbers and back."""

from __future__ import annotations

from collections.abc import Iterable

from formers.core import FormersError, Slot


class Tokenizer(Slot):
    """A reversible map between text and token ids 0 ... vocab-1."""

    specials: tuple[str, ...] = ()
    """Names of tokens that stand for no text, numbered behind the others: begin, end, mask."""

    @property
    def plain(self) -> int:
        """How many ids stand for text."""
        raise TypeError(f"{type(self).__name__} has no ids: define plain.")

    @property
    def vocab(self) -> int:
        """How many ids there are."""
        return self.plain + len(self.specials)

    def special(self, name: str) -> int:
        """The id of a special token."""
        if name not in self.specials:
            raise FormersError(f"this model's tokenizer has no {name!r} token: it has {', '.join(self.specials) or 'none'}.")
        return self.plain + self.specials.index(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        raise TypeError(f"{type(self).__name__} cannot encode: define encode(text).")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens give none."""
        raise TypeError(f"{type(self).__name__} cannot decode: define decode(ids).")


class Bytes(Tokenizer):
    """UTF-8 bytes: every text is 0 ... 255, and there is no vocabulary to learn or to lose."""

    @property
    def plain(self) -> int:
        return 256

    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode("utf-8", errors="surrogateescape"))
        except UnicodeEncodeError:  # half of a character, which no UTF-8 text has
            return list(text.encode("utf-8", errors="replace"))

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
