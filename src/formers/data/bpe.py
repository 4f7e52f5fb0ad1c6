"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019): frequent pairs of tokens become tokens.

The 256 bytes are tokens from the start, so every text can be encoded and decodes to itself. Merging and training are done by the
library `tokenizers`, whose JSON is the tokenizer's definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from pydantic import field_validator

from formers.core import FormersError
from formers.data.tokenize import Ids, Tokenizer, to_utf8

if TYPE_CHECKING:
    import tokenizers

VOCAB = 4096
"""Default number of ids."""
WORD = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^\s\p{L}\p{M}\p{N}]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
"""Merges stay inside these: GPT-2's words, cut at 64 characters, so that a text without spaces costs no more than another."""
PIECE = 1 << 14
"""Number of characters encoded at once."""
SAMPLE = 1 << 24
"""Training reads about this many bytes at most: pieces spread evenly over the text."""


class BPE(Tokenizer):
    """Byte-pair encoding; `definition` is the JSON of a `tokenizers.Tokenizer`."""

    definition: str

    @field_validator("definition")
    @classmethod
    def _loads(cls, definition: str) -> str:
        _load(definition)
        return definition

    @property
    def plain(self) -> int:
        return len(_load(self.definition)[1])

    def encode(self, text: str) -> list[int]:
        return [i for ids in self.encode_stream([text]) for i in ids.tolist()]

    def encode_stream(self, texts: Iterable[str]) -> Iterator[Ids]:
        tokenizer, pieces = _load(self.definition)[0], recut(texts)
        while batch := list(islice(pieces, 16)):
            for made in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(made.ids, dtype=np.uint32)

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        table = _load(self.definition)[1]
        return b"".join(table[i] for i in ids if i < len(table))


def train_bpe(texts: Iterable[str], size: int, specials: tuple[str, ...] = ()) -> BPE:
    """A BPE of at most `size` ids, including specials, trained on texts; deterministic."""
    import tokenizers as t

    if size < 256 + len(specials):
        raise FormersError(f"vocab={size} is too small for bpe: give at least {256 + len(specials)}, the bytes and the special tokens.")
    made = t.Tokenizer(t.models.BPE())
    made.pre_tokenizer = t.pre_tokenizers.Sequence(
        [t.pre_tokenizers.Split(t.Regex(WORD), "isolated"), t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = t.decoders.ByteLevel()
    trainer = t.trainers.BpeTrainer(
        vocab_size=size - len(specials),
        min_frequency=2,
        initial_alphabet=sorted(t.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(map(_clean, texts), trainer)
    return BPE(definition=made.to_str(), specials=specials)


def recut(texts: Iterable[str]) -> Iterator[str]:
    """The text of arbitrary pieces, in pieces that depend on the text only: each ends after a line or before a space."""
    rest = ""
    for text in texts:
        rest, start = rest + text, 0
        while len(rest) - start > PIECE:
            stop = start + PIECE
            cut = rest.rfind("\n", start, stop) + 1 or max(rest.rfind(" ", start + 1, stop), 0) or stop
            yield _clean(rest[start:cut])
            start = cut
        rest = rest[start:]
    if rest:
        yield _clean(rest)


def _clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else to_utf8(text).decode("utf-8", errors="replace")


@lru_cache(maxsize=8)
def _load(definition: str) -> tuple[tokenizers.Tokenizer, list[bytes]]:
    """The tokenizer of a definition, and the bytes of each of its ids."""
    import tokenizers as t

    try:
        made = t.Tokenizer.from_str(definition)
        of = {character: byte for byte, character in enumerate(_byte_characters())}
        words = sorted(made.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        table = [bytes(of[character] for character in word) for word, _ in words]
        if [number for _, number in words] != list(range(len(words))) or not {bytes([b]) for b in range(256)} <= set(table):
            raise ValueError
    except Exception:  # `tokenizers` raises plain Exception
        raise FormersError("the definition is not a byte-level BPE: use the definition of a tokenizer that formers trained.") from None
    return made, table


def _byte_characters() -> list[str]:
    """The character that represents each byte in a byte-level vocabulary: itself if printable, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + hidden.index(byte)) for byte in range(256)]
