"""The Linformer learns what needs mixing over the length, and what needs places: both through projected keys alone. A few seconds each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from formers import Model
from learn.fitting import Batch, fit

SMALL = {"dim": 32, "heads": 4, "layers": 2, "hidden": 64, "dropout": 0.0, "length": 16, "rank": 4}
LENGTH, BATCH = SMALL["length"], 64


def places(n: int) -> Tensor:
    """Two different places in each of n rows."""
    return torch.rand(n, LENGTH).argsort(dim=1)[:, :2]


def accuracy(model: Model, test: Batch) -> float:
    with torch.no_grad():
        return (model(test["tokens"]).logits.argmax(dim=-1) == test["targets"]).double().mean().item()


# (a) Among blanks stand a letter (1 or 2) and a figure (3 or 4), anywhere: are both the first of their kind, or both the second?

ALONE = 3 / 4
"""What can be reached without mixing: a sum of terms of single tokens is on the right side of a threshold for three of four pairs."""


def agreeing(n: int) -> Batch:
    letter, figure = torch.randint(2, (2, n))
    tokens = torch.zeros(n, LENGTH, dtype=torch.int64).scatter(1, places(n), torch.stack([1 + letter, 3 + figure], dim=1))
    return {"tokens": tokens, "targets": (letter == figure).long()}


@pytest.mark.parametrize(
    "options", [{"sharing": "none"}, {"sharing": "layerwise"}, {"projection": "mean"}, {"projection": "conv"}], ids=str
)
def test_it_learns_to_compare_tokens_anywhere(options: dict[str, str]) -> None:
    model = formers.create("linformer", vocab=5, classes=2, **SMALL, **options)
    fit(model, lambda: agreeing(BATCH), steps=300)
    assert accuracy(model, agreeing(1000)) > 0.95 > ALONE


# (b) Which of two marks among noise stands first? Without positions a bag of tokens is right by chance; a projection's columns are places.


def first(n: int) -> Batch:
    label = torch.randint(2, (n,))
    marks = torch.stack([4 + label, 5 - label], dim=1)
    tokens = torch.randint(4, (n, LENGTH)).scatter(1, places(n).sort(dim=1).values, marks)
    return {"tokens": tokens, "targets": label}


def test_a_learned_projection_tells_places_without_positions() -> None:
    model = formers.create("linformer", vocab=6, classes=2, position="none", **SMALL)
    fit(model, lambda: first(BATCH), steps=250)
    assert accuracy(model, first(1000)) > 0.9
    with torch.no_grad():
        model.stack.common.keys.copy_(model.stack.common.keys.mean(dim=1, keepdim=True).expand_as(model.stack.common.keys))
    assert accuracy(model, first(1000)) < 0.6, "with one weight for all places nothing is left but chance"
