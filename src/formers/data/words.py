"""Words as tokens, as for Penn Treebank and WikiText: strings between white space, and the end of each line.

ids: 0 is the line end (the literature's <eos>), then the words of the training part by frequency; ties in order of appearance

This is the order of the Transformer-XL authors' vocabulary. A word without an id is read as `<unk>`; if the data contain `<unk>`, it is
the same token. Its id follows from its frequency, including the words that `vocab` leaves out; if it never occurs, it is last and
stays untrained.

A word decodes to a space and itself, a line end to a space and a newline, so WikiText and Penn Treebank are restored exactly. For
other texts, other white space and the words read as `<unk>` are lost: bytes are counted of the text that the model sees.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from pydantic import field_validator

from formers.core import FormersError
from formers.data.tokenize import Ids, Tokenizer, to_utf8

LINE_END, UNKNOWN = "\n", "<unk>"


class Words(Tokenizer):
    """Words between white space; `definition` is the JSON list of words, in the order of their ids."""

    definition: str

    @field_validator("definition")
    @classmethod
    def _loads(cls, definition: str) -> str:
        _load(definition)
        return definition

    @property
    def words(self) -> list[str]:
        """All words, in the order of their ids."""
        return _load(self.definition)[0]

    @property
    def plain(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        return [i for ids in self.encode_stream([text]) for i in ids.tolist()]

    def encode_stream(self, texts: Iterable[str]) -> Iterator[Ids]:
        ids = _load(self.definition)[1]
        unknown = ids[UNKNOWN]
        for words in split(texts):
            yield np.fromiter((ids.get(word, unknown) for word in words), dtype=np.uint32, count=len(words))

    def to_bytes(self, ids: Iterable[int]) -> bytes:
        words = self.words
        return to_utf8("".join(f" {words[i]}" for i in ids if i < len(words)))

    def text(self, data: bytes) -> str:
        """The words of ids, separated by one space, without spaces at line ends."""
        return super().text(data).replace(" \n", "\n").replace("\n ", "\n").removeprefix(" ")


def build_words(texts: Iterable[str], size: int | None = None, specials: tuple[str, ...] = ()) -> Words:
    """The tokenizer of the words of some texts; with `size`, the most frequent ones, at most `size` ids including specials."""
    counts: Counter[str] = Counter()
    for words in split(texts):
        counts.update(words)
    del counts[LINE_END]
    counts.setdefault(UNKNOWN, 0)
    room = len(counts) if size is None else size - 1 - len(specials)
    if room < 2:
        raise FormersError(f"vocab={size} is too small for words: give at least {3 + len(specials)}, the line end, {UNKNOWN} and a word.")
    others = [word for word, _ in counts.most_common() if word != UNKNOWN]
    for word in others[room - 1 :]:
        counts[UNKNOWN] += counts.pop(word)
    known = [LINE_END, *(word for word, _ in counts.most_common())]
    return Words(definition=json.dumps(known, ensure_ascii=False, indent=0), specials=specials)


def split(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words and line ends of a text given in chunks, which may cut words."""
    rest = ""
    for text in texts:
        text = rest + text
        # After the last white space a word may continue in the next chunk.
        stop = max(text.rfind(" "), text.rfind(LINE_END)) + 1
        rest = text[stop:]
        if found := _split(text[:stop]):
            yield found
    if found := _split(rest):
        yield found


def _split(text: str) -> list[str]:
    first, *lines = text.split(LINE_END)
    words = first.split()
    for line in lines:
        words.append(LINE_END)
        words += line.split()
    return words


@lru_cache(maxsize=8)
def _load(definition: str) -> tuple[list[str], dict[str, int]]:
    """The words of a definition, and the id of each."""
    try:
        words = json.loads(definition)
        ids = {word: number for number, word in enumerate(words)}
        wrong = len(ids) != len(words) or words[:1] != [LINE_END] or UNKNOWN not in ids or any(w.split() != [w] for w in words[1:])
    except (ValueError, TypeError, AttributeError, RecursionError):
        wrong = True
    if wrong:
        raise FormersError(
            f"the definition of the words is not a JSON list of different words, the line end first and {UNKNOWN} among them: "
            "use the definition of a tokenizer that formers made."
        )
    return words, ids
