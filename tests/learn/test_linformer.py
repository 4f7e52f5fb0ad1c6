"""The Linformer learns what needs mixing over the length, and what needs places: both from projected keys alone. A few seconds each."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Model
from learn.fitting import Batch, fit

SMALL = {"dim": 32, "heads": 4, "layers": 2, "hidden": 64, "dropout": 0.0}
LENGTH, RANK, BATCH, NOISE = 64, 8, 64, 10


def accuracy(model: Model, batch: Batch) -> float:
    with torch.no_grad():
        return (model(batch["tokens"]).logits.argmax(dim=-1) == batch["targets"]).double().mean().item()


def places(n: int) -> torch.Tensor:
    """Two different places in each of n rows."""
    return torch.rand(n, LENGTH).argsort(dim=1)[:, :2]


# (a) Among noise stand one of four letters and one of four figures, anywhere: have they the same number? Half of them have.

LETTERS, FIGURES = NOISE, NOISE + 4
ALONE = 2 / 3
"""What is reached without mixing: a sum of terms of single tokens is above a threshold on a staircase of the 4 x 4 pairs, of which the
best holds two equal pairs of four and two unequal ones of twelve: 1/2 + 2/8 - 2/24."""


def numbers_agree(n: int) -> Batch:
    first, labels = torch.randint(4, (n,)), torch.randint(2, (n,))
    second = (first + (1 - labels) * torch.randint(1, 4, (n,))) % 4
    tokens = torch.randint(NOISE, (n, LENGTH))
    tokens.scatter_(1, places(n), torch.stack([LETTERS + first, FIGURES + second], dim=1))
    return {"tokens": tokens, "targets": labels}


def numbers_by(steps: int, **options: object) -> float:
    model = formers.create("linformer", vocab=NOISE + 8, classes=2, length=LENGTH, rank=RANK, **{**SMALL, **options})
    fit(model, lambda: numbers_agree(BATCH), steps)
    return accuracy(model, numbers_agree(2000))


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value", "layerwise"])
def test_it_learns_to_compare_two_tokens_anywhere(sharing: str) -> None:
    assert numbers_by(400, sharing=sharing) > 0.95 > ALONE


# (b) Which of two marks stands first? A bag of tokens cannot know; the columns of the projection are places.

def which_first(n: int) -> Batch:
    labels = torch.randint(2, (n,))
    tokens = torch.randint(NOISE, (n, LENGTH))
    tokens.scatter_(1, places(n).sort(dim=1).values, NOISE + torch.stack([labels, 1 - labels], dim=1))
    return {"tokens": tokens, "targets": labels}


def order_by(member: str, steps: int, **options: object) -> float:
    model = formers.create(member, vocab=NOISE + 2, classes=2, length=LENGTH, position="none", **SMALL, **options)
    fit(model, lambda: which_first(BATCH), steps)
    return accuracy(model, which_first(2000))


def test_a_learned_projection_knows_places_without_positions() -> None:
    assert order_by("linformer", 300, rank=RANK) > 0.95
