"""Token streams (n,), memory-mapped: a part uses no memory until it is read.

A single plain file of bytes is mapped in place. All others are written once into the cache, as a flat file of unsigned integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from formers.core import FormersError
from formers.data.cache import Sink, key_of, made
from formers.data.files import Stretch
from formers.data.progress import Progress
from formers.data.reading import Reading
from formers.data.text import Text, TextData, open_text
from formers.data.tokenize import Bytes, Tokenizer


def token_stream(data: TextData, part: str, tokenizer: Tokenizer) -> Tensor:
    """The ids of a part of a text, in the smallest of uint8, uint16 and uint32 that holds the tokenizer's ids."""
    stretches = data.parts[part]
    facts = [[s.sum, s.start, s.stop] for s in stretches]
    if isinstance(tokenizer, Bytes):
        if len(stretches) == 1:
            return _mapped(stretches[0].path, np.dtype(np.uint8), stretches[0].start, stretches[0].size)
        return _mapped(made("streams", key_of("bytes", facts), lambda sink: _join(stretches, sink)), np.dtype(np.uint8))
    kind = smallest(tokenizer.vocab)

    def encode(sink: Sink) -> None:
        with Progress(f"tokenising the {part} part of {data.parts.name}", sum(s.size for s in stretches)) as progress:
            for ids in tokenizer.encode_stream(_counted(data.texts(part), progress)):
                sink.write(ids.astype(kind).tobytes())

    path = made("streams", key_of(tokenizer.model_dump_json(), data.invalid, facts), encode)
    if path.stat().st_size < 2 * kind.itemsize:
        raise FormersError(f"the {part} part of {data.parts.name} has fewer than 2 tokens: give more text.")
    return _mapped(path, kind)


def read_text(data: str | Path, reading: Reading = Reading()) -> Text:
    """The bytes of a text by part."""
    opened = open_text(data, reading)
    return Text(token_stream(opened, "train", Bytes()), token_stream(opened, "valid", Bytes()), opened.about)


def smallest(vocab: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type that holds the ids 0 ... vocab-1."""
    return np.dtype(np.uint8 if vocab <= 1 << 8 else np.uint16 if vocab <= 1 << 16 else np.uint32)


def _mapped(path: Path, kind: np.dtype[np.unsignedinteger], start: int = 0, size: int | None = None) -> Tensor:
    """A file's numbers, mapped privately: torch requires writable memory."""
    return torch.from_numpy(np.memmap(path, dtype=kind, mode="c", offset=start, shape=None if size is None else (size,)))


def _join(stretches: list[Stretch], sink: Sink) -> None:
    with Progress(f"joining {len(stretches)} files", sum(s.size for s in stretches)) as progress:
        for number, stretch in enumerate(stretches):
            sink.write(b"\n" if number else b"")
            for chunk in stretch.chunks():
                sink.write(chunk)
                progress.advance(len(chunk))


def _counted(texts: Iterator[str], progress: Progress) -> Iterator[str]:
    for text in texts:
        progress.advance(len(text))
        yield text
