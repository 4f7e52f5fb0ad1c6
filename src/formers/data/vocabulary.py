"""The tokenizer for some data: bytes, characters, words, or a byte-pair encoding trained on the training part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from formers.data.bpe import BPE, VOCAB, train_bpe
from formers.data.cache import key_of, made
from formers.data.examples import Examples
from formers.data.text import TextData
from formers.data.tokenize import Bytes, Characters, Tokenizer, code_points
from formers.data.words import Words, build_words


def find_tokenizer(kind: str, data: TextData | Examples, specials: tuple[str, ...] = (), vocab: int | None = None) -> Tokenizer:
    """The tokenizer of a kind for some data; computed once and cached.

    Characters are those of all parts. Words (at most `vocab`, default all) and BPE (`vocab` ids, default 4096) use the training part.
    """
    if kind == "bytes":
        return Bytes(specials=specials)
    if kind == "characters":
        return Characters(characters=_cached(kind, data, lambda: _characters(data)), specials=specials)
    if kind == "words":
        room = "all" if vocab is None else vocab - len(specials)
        definition = _cached(f"words {room}", data, lambda: build_words(_lines(data), vocab, specials).definition)
        return Words(definition=definition, specials=specials)
    size = VOCAB if vocab is None else vocab
    definition = _cached(f"bpe {size - len(specials)}", data, lambda: train_bpe(data.sample(), size, specials).definition)
    return BPE(definition=definition, specials=specials)


def _cached(what: str, data: TextData | Examples, find: Callable[[], str]) -> str:
    """The cached result of `find`, or its result now."""
    key = key_of(what, data.fingerprint, data.invalid)
    return made("vocabularies", key, lambda sink: sink.write(find().encode("utf-8"))).read_bytes().decode("utf-8")


def _lines(data: TextData | Examples) -> Iterator[str]:
    """The training text, in chunks; each example is a line."""
    for text in data.texts("train"):
        yield text
        if isinstance(data, Examples):
            yield "\n"


def _characters(data: TextData | Examples) -> str:
    """The distinct characters of all parts, sorted."""
    found = np.zeros(0x110000, dtype=bool)
    for part in data.parts:
        for text in data.texts(part):
            found[code_points(text)] = True
    return "".join(map(chr, np.flatnonzero(found)))
