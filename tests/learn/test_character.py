"""What auxiliary losses are for: a deep post-norm stack that its last layer's loss does not move. Some ten seconds each."""

from __future__ import annotations

import math
import random

import torch

import formers
from learn.fitting import Batch, fit

WORDS = """the deep stack of layers learns slowly where only its last one is told what comes next and each young layer that must guess
for itself passes a better stream to those above it until half of all time has gone by"""
LENGTH, LAYERS = 24, 12


def text() -> torch.Tensor:
    """Words in random order, letter by letter: within a word the next letter can be predicted, of a word only its frequency."""
    draw, words = random.Random(0), WORDS.split()
    letters = " ".join(draw.choice(words) for _ in range(4000))
    return torch.tensor([0 if letter == " " else ord(letter) - 96 for letter in letters])


def bits(**options: object) -> float:
    """The bits per letter of the last layer after training."""
    torch.manual_seed(0)
    data = text()

    def batch(rows: int = 8) -> Batch:
        windows = data[torch.randint(len(data) - LENGTH, (rows, 1)) + torch.arange(LENGTH + 1)]
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:]}

    model = formers.create("character-transformer", vocab=27, dim=32, layers=LAYERS, length=LENGTH, norm="post", **options)
    fit(model, batch, steps=250, rate=5e-3)
    with torch.no_grad():
        return model(**batch(64)).losses["cross_entropy"].item() / math.log(2)


def test_intermediate_losses_move_a_deep_stack_that_its_last_loss_does_not() -> None:
    assert bits(auxiliary=False) > 3.85, "it has learned how frequent letters are, and nothing else"
    assert bits(intermediate="constant", targets=1) < 3.3
