"""BigBird finds a needle anywhere in 1,024 tokens, with the answer at the first of them; a window alone does not. Some seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import formers
from learn.fitting import Batch, fit

LENGTH, BLOCK, LAYERS = 1024, 32, 2
NEEDLES, VOCAB, STEPS = 2, 12, 120
SMALL = {"dim": 32, "heads": 2, "hidden": 32, "layers": LAYERS, "dropout": 0.0, "position": "none"}


def hay(n: int, length: int = LENGTH) -> Batch:
    """Rows of straw with one needle, of two kinds, anywhere behind the first token; the kind is the class."""
    tokens = torch.randint(NEEDLES, VOCAB, (n, length))
    kinds = torch.randint(NEEDLES, (n,))
    tokens[torch.arange(n), torch.randint(1, length, (n,))] = kinds
    return {"tokens": tokens, "targets": kinds}


def growing(steps: int) -> Callable[[], Batch]:
    """Batches of short rows first, where a needle is soon noticed, and of all 1,024 tokens in the end."""
    lengths = iter([64] * (steps // 2) + [256] * (steps // 4) + [LENGTH] * steps)
    return lambda: hay(16, next(lengths))


def accuracy(**pattern: int) -> float:
    """How often a model over such a pattern, which answers at the first token, is right on rows that it has not seen."""
    model = formers.create("bigbird", vocab=VOCAB, classes=NEEDLES, pool="first", length=LENGTH, block=BLOCK, **pattern, **SMALL)
    fit(model, growing(STEPS), STEPS, rate=1e-2)
    test = hay(128)
    with torch.no_grad():
        return (model(test["tokens"]).logits.argmax(dim=-1) == test["targets"]).double().mean().item()


@pytest.mark.parametrize("pattern", [{"random_blocks": 1}, {"extra": 4, "random_blocks": 0}], ids=["ITC", "ETC"])
def test_a_needle_anywhere_is_found(pattern: dict[str, int]) -> None:
    assert accuracy(**pattern) >= 0.95


def test_a_window_alone_does_not_reach_it() -> None:
    """Two layers of three blocks reach 96 tokens: what stands behind them can only be guessed."""
    assert (1 + LAYERS) * BLOCK / LENGTH < 0.1
    assert accuracy(global_blocks=0, random_blocks=0) <= 0.65
