"""LSH attention learns to copy a word, which asks a query for one key far back; were keys hashed otherwise, it could not. Some seconds."""

from __future__ import annotations

import pytest
import torch

from formers.attention.lsh.layer import LSHAttention
from formers.experiments import copying
from formers.experiments.copying import Copying, copy_accuracy, train_model
from formers.model import respecified

TASK = Copying(words=15, symbols=8, dim=32, heads=2, chunk=8, steps=150, batch=8, rate=1e-2)
ROUNDS = 2


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "ROWS", 32)


def test_a_word_is_copied_by_hashing_and_better_with_more_rounds() -> None:
    model, _ = train_model(TASK, ROUNDS)
    right = {rounds: copy_accuracy(TASK, respecified(model, TASK.spec(rounds))) for rounds in (1, ROUNDS, 8)}
    assert right[ROUNDS] >= 0.95
    assert right[8] >= 0.99
    assert right[1] < right[ROUNDS] <= right[8]


def test_it_is_not_where_the_copy_is_hashed_by_other_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries then meet the right key by chance alone: two rounds of 8 buckets, two heads, 41 % at the most, and guesses."""
    hashed = LSHAttention.hash

    def torn(self, q, keys, stream):
        first, second = (hashed(self, q, by, stream) for by in (keys, (*keys, 1)))
        return torch.cat([first[..., : TASK.words + 1], second[..., TASK.words + 1 :]], dim=-1)

    monkeypatch.setattr(LSHAttention, "hash", torn)
    model, _ = train_model(TASK, ROUNDS)
    assert copy_accuracy(TASK, model) < 0.6
