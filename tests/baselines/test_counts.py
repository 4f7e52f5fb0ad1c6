"""The count model equals a naive loop over dictionaries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from formers.baselines import CountModel
from helpers import sweep


def naive(train: bytes, text: bytes, order: int) -> float:
    """Witten-Bell, one byte at a time."""
    after = defaultdict(Counter)
    for k in range(order + 1):
        for i in range(k, len(train)):
            after[train[i - k : i]][train[i]] += 1

    def p(context: bytes, byte: int) -> float:
        lower = p(context[1:], byte) if context else 1 / 256
        seen = after.get(context)
        if not seen:
            return lower
        return (seen[byte] + len(seen) * lower) / (sum(seen.values()) + len(seen))

    bits = [-math.log2(p(text[max(0, i - order) : i], text[i])) for i in range(1, len(text))]
    return sum(bits) / len(bits)


@sweep("order", [0, 1, 2, 3, 5])
def test_it_equals_the_naive_loop(order):
    random = np.random.default_rng(0)
    train, text = (bytes(random.integers(0, 5, size=n).astype(np.uint8)) for n in (300, 80))
    text += b"\xff\x00zz"
    model = CountModel(np.frombuffer(train, np.uint8), order)
    assert model.bits_per_byte(np.frombuffer(text, np.uint8)) == pytest.approx(naive(train, text, order), abs=1e-12)


def test_more_context_helps_where_there_is_structure():
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 50, np.uint8)
    bits = [CountModel(text[:1500], k).bits_per_byte(text[1500:]) for k in range(4)]
    assert bits == sorted(bits, reverse=True)
    assert bits[3] < 0.5
