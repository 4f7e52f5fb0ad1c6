"""Tasks that are drawn: rows as they are defined, targets where they can be predicted, and the same again by the same keys."""

from __future__ import annotations

import torch

from formers.core import IGNORED
from formers.data.tasks import duplication, token_accuracy
from helpers import refused


def test_a_row_is_a_word_twice_and_the_second_one_is_asked_for():
    batch = duplication(words=5, symbols=9, rows=40, seed=3)
    tokens, targets = batch["tokens"], batch["targets"]
    assert tokens.shape == targets.shape == (40, 11)
    row = torch.cat([tokens, targets[:, -1:]], dim=1)
    assert row[:, [0, 6]].eq(0).all()
    assert row[:, 1:6].equal(row[:, 7:])
    assert set(row[:, 1:6].unique().tolist()) == set(range(1, 10))
    assert targets[:, :6].eq(IGNORED).all()
    assert targets[:, 6:].equal(row[:, 7:])


def test_rows_are_a_function_of_seed_step_and_part():
    def drawn(seed=0, step=0, part="train"):
        return duplication(20, 9, 4, seed, step, part)["tokens"]

    assert drawn().equal(drawn())
    for other in (drawn(seed=1), drawn(step=1), drawn(part="valid")):
        assert not drawn().equal(other)


def test_token_accuracy_counts_targets_only():
    targets = torch.tensor([[IGNORED, 1, 2, 0]])
    logits = torch.nn.functional.one_hot(torch.tensor([[2, 1, 2, 1]]), 3).float()
    assert token_accuracy(logits, targets) == 2 / 3


def test_what_makes_no_words_is_refused():
    with refused("words=0", "at least 1"):
        duplication(0, 9, 1, 0)
    with refused("symbols=1", "at least 2"):
        duplication(5, 1, 1, 0)
