"""Tasks whose rows are drawn, as many as one asks for: what they ask of a model is known exactly.

0 w 0 w        w a random word of `words` symbols 1 ... `symbols`        duplication (Kitaev et al., 2020, section 5)

The second word can be told from the first alone, `words` places before; where it stands is all that counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.core import IGNORED, FormersError
from formers.core.random import generator
from formers.data.batches import Batch


def duplication(words: int, symbols: int, rows: int, seed: int, step: int = 0, part: str = "train") -> Batch:
    """Rows 0 w 0 w of 2 (words + 1) tokens, as inputs and targets; the second word's tokens are targets, and nothing else.

    words: the symbols of a word. symbols: how many there are beside 0, so that vocab is one more. The rows are a function of (seed, step)
    and of the part, so that those of "valid" are others than those of "train".
    """
    for name, value, least in (("words", words, 1), ("symbols", symbols, 2), ("rows", rows, 1)):
        if value < least:
            raise FormersError(f"{name}={value} makes no words to copy: give at least {least}.")
    word = torch.randint(1, symbols + 1, (rows, words), generator=generator(seed, "duplication", part, step))
    zero = torch.zeros(rows, 1, dtype=torch.long)
    row = torch.cat([zero, word, zero, word], dim=1)
    targets = row[:, 1:].clone()
    targets[:, : words + 1] = IGNORED
    return {"tokens": row[:, :-1].contiguous(), "targets": targets}


def told(logits: Tensor, targets: Tensor) -> float:
    """The share of targets that are the likeliest token by the logits (batch, length, vocab)."""
    judged = targets != IGNORED
    return (logits.argmax(dim=-1) == targets)[judged].double().mean().item()
