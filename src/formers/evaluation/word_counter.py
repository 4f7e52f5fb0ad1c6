"""Counts bytes, characters and words of a text that comes in chunks."""

from __future__ import annotations

import numpy as np

SPACE = np.zeros(256, dtype=bool)
SPACE[list(b" \t\n\r\v\f")] = True


class WordCounter:
    """Counts bytes, UTF-8 characters, and words and line ends of a text given in chunks, which may split words and characters."""

    def __init__(self) -> None:
        self.inside = False
        """Whether the last byte was inside a word."""

    def count(self, text: bytes) -> tuple[int, int, int]:
        """Bytes, characters and words that the next chunk adds."""
        if not text:
            return 0, 0, 0
        data = np.frombuffer(text, dtype=np.uint8)
        solid = ~SPACE[data]
        begins = solid & ~np.concatenate([[self.inside], solid[:-1]])
        self.inside = bool(solid[-1])
        characters = int(((data & 0xC0) != 0x80).sum())
        return len(data), characters, int(begins.sum()) + int((data == ord("\n")).sum())
